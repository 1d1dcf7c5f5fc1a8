"""Regions drawn at random, and writers of the files that others publish them in."""

import base64

import h5py
import numpy as np

from onmt_varattn.vqa.features.regions import Regions


def draw(images, size=6, boxes=(1, 5), seed=1):
    """Regions for image ids, with numbers of boxes between two bounds."""
    random = np.random.default_rng(seed)
    drawn = []
    for image in images:
        count = int(random.integers(boxes[0], boxes[1] + 1))
        corners = random.uniform(0, 400, (count, 4)).astype("<f4")
        features = random.standard_normal((count, size)).astype("<f4")
        drawn.append(Regions(image, 640 + image % 7, 480 + image % 5, corners, features))
    return drawn


def tsv_line(regions):
    arrays = [base64.b64encode(array.tobytes()) for array in (regions.boxes, regions.features)]
    numbers = [regions.image, regions.width, regions.height, len(regions.boxes)]
    return b"\t".join([*(str(number).encode() for number in numbers), *arrays]) + b"\n"


def write_tsv(path, drawn):
    path.write_bytes(b"".join(map(tsv_line, drawn)))


def flat_arrays(drawn):
    return {
        "image_id": np.array([regions.image for regions in drawn]),
        "image_w": np.array([regions.width for regions in drawn]),
        "image_h": np.array([regions.height for regions in drawn]),
        "num_boxes": np.array([len(regions.boxes) for regions in drawn]),
        "boxes": np.concatenate([regions.boxes for regions in drawn]),
        "features": np.concatenate([regions.features for regions in drawn]),
    }


def padded_arrays(drawn):
    """With the boxes of an image in a row of their own; NaN where there is none."""
    arrays = flat_arrays(drawn)
    most = arrays["num_boxes"].max()
    for name in ("boxes", "features"):
        padded = np.full((len(drawn), most, arrays[name].shape[1]), np.nan, "<f4")
        for row, regions in zip(padded, drawn, strict=True):
            row[: len(regions.boxes)] = getattr(regions, name)
        arrays[name] = padded
    return arrays


def span_arrays(drawn):
    """As adaptive features are published: pos_boxes, image_features, image_bb."""
    arrays = flat_arrays(drawn)
    stops = arrays.pop("num_boxes").cumsum()
    arrays["pos_boxes"] = np.stack([np.concatenate([[0], stops[:-1]]), stops], 1)
    arrays["image_ids"] = arrays.pop("image_id")
    arrays["image_bb"], arrays["image_features"] = arrays.pop("boxes"), arrays.pop("features")
    return arrays


def write_hdf5(path, arrays, **options):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **options)


def write_groups(path, drawn, attributes=True):
    with h5py.File(path, "w") as file:
        for regions in drawn:
            group = file.create_group(str(regions.image))
            group["boxes"], group["features"] = regions.boxes, regions.features
            target = group.attrs if attributes else group
            target["image_w"], target["image_h"] = regions.width, regions.height


def write_directory(path, drawn, transposed=False, name="{}"):
    path.mkdir()
    for regions in drawn:
        features = regions.features.T if transposed else regions.features
        sizes = {"image_w": regions.width, "image_h": regions.height}
        np.savez(path / f"{name.format(regions.image)}.npz", x=features, bbox=regions.boxes, **sizes)


FORMATS = {
    "a.tsv": write_tsv,
    "flat.h5": lambda path, drawn: write_hdf5(path, flat_arrays(drawn)),
    "packed.hdf5": lambda path, drawn: write_hdf5(
        path, flat_arrays(drawn) | {"image_id": np.array([f"COCO_{r.image:012}".encode() for r in drawn])},
        chunks=True, compression="gzip",
    ),
    "padded.h5": lambda path, drawn: write_hdf5(path, padded_arrays(drawn)),
    "spans.hdf5": lambda path, drawn: write_hdf5(path, span_arrays(drawn)),
    "groups.h5": write_groups,
    "datasets.h5": lambda path, drawn: write_groups(path, drawn, attributes=False),
    "flat.npz": lambda path, drawn: np.savez(path, **flat_arrays(drawn)),
    "packed.npz": lambda path, drawn: np.savez_compressed(path, **padded_arrays(drawn)),
    "directory": write_directory,
    "transposed": lambda path, drawn: write_directory(path, drawn, True, "COCO_train2014_{:012}.jpg"),
}  # fmt: skip
"""Names of files, and what writes them."""
