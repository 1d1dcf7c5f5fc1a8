"""What a detector would see of a box: a sum of one vector an attribute, and noise.

There is no vector for a combination such as "red star". The mean over two boxes therefore keeps which
colours and shapes there are, and loses which of them belong together.
"""

from functools import lru_cache

import numpy as np

from onmt_varattn.vqa.scenes.scene import COLOURS, COLUMNS, RADII, ROWS, SHAPES, Box, Scene

ATTRIBUTES = ("thing", "background", *COLOURS, *SHAPES, *RADII, *ROWS, *COLUMNS)
DETECTOR = 1706  # seed of the attributes' vectors, which are the same for all scenes of a feature size
ACTIVE = 1 / 8  # share of the features that an attribute shows in
SMALLEST = 32  # feature size, for attributes to be told apart


def attributes(box: Box) -> np.ndarray:
    """1 for each attribute that a box has, else 0: A."""
    seen = {"background"} if box.thing is None else {"thing", *box.thing}
    seen |= {box.row, box.column}
    return np.array([attribute in seen for attribute in ATTRIBUTES], np.float32)


@lru_cache
def vectors(feature_size: int) -> np.ndarray:
    """One vector an attribute, non-negative and sparse as those of a detector are: A x F."""
    draw = np.random.default_rng([DETECTOR, feature_size])
    drawn = np.abs(draw.standard_normal((len(ATTRIBUTES), feature_size), np.float32))
    return drawn * (drawn >= np.quantile(drawn, 1 - ACTIVE, axis=1, keepdims=True))


def features(scene: Scene, seed: int, feature_size: int, noise: float) -> np.ndarray:
    """The features of all boxes of a scene, none below zero, as after a rectifier: S x F."""
    draw = np.random.default_rng([seed, scene.image])
    clean = np.stack([attributes(box) for box in scene.boxes]) @ vectors(feature_size)
    return np.maximum(clean + np.float32(noise) * draw.standard_normal(clean.shape, np.float32), 0)
