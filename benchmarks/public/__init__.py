"""Public training scripts written by others: profiled, tuned and run without changes.

scripts.toml        the scripts, and how to start each
cases.py            reads it
makers.py           lists the functions that create the data a script expects next to it
prepare.py          text, digits and images
prepare_arrays.py   graphs, patches, masks, spectrograms
prepare_hub.py      models and datasets in the form of the Hugging Face Hub
requirements.txt    what the scripts import
run.py              takes a folder of repository clones, and measures each part on a copy of the files each script needs
processes.py        runs a command, and records time and output
whole.py            whole runs in turns
output.py           compares what runs print
truth.py            functions' times, to judge diagnoses; profiled.py is what runs the script
judged.toml         the judgements, by hand
rivals.py           other tuners
verdict.py          what is recorded, and how it is counted
page.py             docs/results/public.md
"""
