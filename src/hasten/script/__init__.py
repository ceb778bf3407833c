"""Watch an unmodified training script: run it as it is, in a process of its own, and see where its time goes.

launch.py     starts the script and passes on what it says and gets
site/         the first thing that Python imports in the script's process
hooks.py      waits there until torch is loaded; both know the standard library alone
inside.py     sets to work in the script's process, and takes everything off again
seams.py      what is wrapped, and how it is put back
record.py     the clock: steps, phases, lines
kinds.py      which phase a forward pass belongs to
closures.py   what an optimizer's closure does belongs to the phases in it
frameworks.py what Lightning, Transformers and Accelerate do around the steps
marks.py      `hasten.step()`: steps that a loop marks itself
api.py        `hasten.attach()`: the same seams, put on from inside for the time of a block (watched.py)
harmless.py   what keeps a profiling run from leaving anything behind
replay.py     kept batches in place of the loader's
judge.py      from what was seen to a profile
"""
