"""The shipped tasks as exact models."""

from __future__ import annotations

import msgspec

from onrig.hw.rig import Rig
from onrig.runtime.config.conversion import convert
from onrig.runtime.config.document import find_config, load_document
from onrig.runtime.task import Task, episode_steps
from onrig.sim.baselines.task_model import TaskModel
from onrig.sim.plants import Magman, Pendulum, Plant

RATE_HZ = 50.0


def shipped(rig: str, task: str, plant: Plant) -> TaskModel:
    the_rig = convert(load_document(find_config(rig, "rigs")), (), Rig)
    the_task = convert(load_document(find_config(task, "tasks")), (), Task)
    return TaskModel(the_rig, the_task, plant, 1.0 / RATE_HZ, episode_steps(the_task, RATE_HZ))


PENDULUM = shipped("pendulum", "swingup", Pendulum())
HARDWARE = shipped("pendulum-hardware", "swingup-hardware", Pendulum(inertia="hardware"))
MAGMAN = shipped("magman", "positioning", Magman())
ALL = {"pendulum": PENDULUM, "hardware": HARDWARE, "magman": MAGMAN}


def with_task(model: TaskModel, **changes: object) -> TaskModel:
    return msgspec.structs.replace(model, task=msgspec.structs.replace(model.task, **changes))
