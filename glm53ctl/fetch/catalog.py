"""The checkpoints this project knows by name: where they come from, pinned, with the facts known of them.

Data only. A confirmed hash comes from two sources and is the law; any other known hash is a hint, and
the hub's own word for the pinned revision wins over it.
"""

from __future__ import annotations

from dataclasses import dataclass

from glm53ctl.paths import FLASH_FOLDER


@dataclass(frozen=True, slots=True)
class KnownFile:
    path: str
    size_bytes: int
    sha256: str
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """One pinned revision of one repository. `probe` is a file that lies on the hub's data hosts."""

    name: str
    repo: str
    branch: str
    revision: str
    folder: str
    total_bytes: int
    probe: str
    known: tuple[KnownFile, ...]

    def known_file(self, path: str) -> KnownFile | None:
        return next((item for item in self.known if item.path == path), None)


# fmt: off
FLASH_RELEASE = Release(
    name="glm-5.3-flash",
    repo="turboderp/GLM-5.3-Flash-exl3",
    branch="3.05bpw",
    revision="332ab457b709b7ba30dd9a448be5de03b80a7ac9",
    folder=FLASH_FOLDER,
    total_bytes=125_263_712_676,
    probe="kpool_aux.safetensors",
    known=(
        KnownFile("kpool_aux.safetensors", 11_548_768, "39053cd051c75e81b7e608818111a4b4c3c57da540599089419fe11b51ca02d3"),
        KnownFile("mtp.safetensors", 2_862_645_889, "7274f06d75842edfa258830c836fd790a19324513134e05cd1e931929c4c384d"),
        KnownFile("quantization_config.json", 47_905_678, "308d9a4b28407e2ada887f512bc8793c608586a73d9e0108ca258220ac714280"),
        KnownFile("tokenizer.json", 20_217_442, "19e773648cb4e65de8660ea6365e10acca112d42a854923df93db4a6f333a82d", confirmed=True),
        KnownFile("tokenizer_config.json", 761, "98b1271574f41abf89427ae2dda030d94dc9478f0edc5a8bd240db213c6fd5fc", confirmed=True),
        KnownFile("chat_template.jinja", 8_617, "41cff9af7b3a86c96751b107a8444f245fbda0bd5320b636a5bb1f7f4ba1a5c3", confirmed=True),
        KnownFile("generation_config.json", 194, "230c30609ecbbb9e6583bedde8e7bdda0c6eb8fe5fad0eaeb3d1b293d751cb4f", confirmed=True),
        KnownFile("processor_config.json", 909, "aae38374c94b08cc9b0547c6e64f05b951bd9735cea571c6988f5ed552bed3ed", confirmed=True),
        KnownFile("LICENSE", 1_070, "30b85b6b9659f2e78aa259f8faf5d920a68dee7c9ced3fa6dba1f19f2bc4fca1"),
        KnownFile("README.md", 7_238, "4f46db37e6a7cbe3a494d6d7f616a96f4fffe6d1de68be361199a715c8d928fc"),
    ),
)
# fmt: on
RELEASES = (FLASH_RELEASE,)
