"""Writes files next to itself in every possible way, resumes from them, and trains."""
# ruff: noqa: PTH103, PTH104, PTH105, PTH107, PTH110, PTH123, PTH211, S602 - these ways to write are what is tested

import os
import shutil
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import torch
from safetensors.torch import save_file

if os.path.exists("run/state.npz"):
    sys.exit("it found its own state")
os.makedirs("run/deep/er", exist_ok=False)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(400):
    optimizer.zero_grad()
    net(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    if step == 2:
        np.savez("run/new.npz", step=step)
        os.replace("run/new.npz", "run/state.npz")
        save_file({"w": torch.ones(2)}, "run/w.safetensors")
        save_file({"w": torch.zeros(2)}, "kept/old.safetensors")
        subprocess.run("echo more >> kept/log.txt; echo new > kept/from_shell.txt", shell=True, check=True)
        with open("kept/log.txt", "a") as file:
            file.write("more")
        with sqlite3.connect("kept/runs.db") as database:
            database.execute("INSERT INTO runs VALUES (2)")
        torch.save(net.state_dict(), "kept/model.pt")
        os.remove("kept/gone.txt")
        os.symlink("state.npz", "run/latest")
        if "--outside" in sys.argv:
            os.rename("old_run", "older_run")
            shutil.rmtree("older_run")
            open(sys.argv[sys.argv.index("--outside") + 1] + "/made.txt", "w").close()
        if "--killed" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        print("written", flush=True)
