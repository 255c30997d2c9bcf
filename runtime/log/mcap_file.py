"""One MCAP file of a run's log: its channels, and messages that become readable in chunks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final, cast

from mcap.writer import CompressionType, Writer

from onrig.runtime.files import MAX_JSON_BYTES, read_file
from onrig.runtime.log.messages import Channel, channels
from onrig.runtime.log.staged_file import StagedFile
from onrig.runtime.log.steps import StepMessages

FORMAT_VERSION: Final = "2"
"""Version of the channels and their schemas, as recorded in the metadata record ``onrig``.  Version 1 had mean and std
in every step."""
METADATA_NAME: Final = "onrig"
CHUNK_BYTES: Final = 1 << 20
_ATTACHMENTS: Final = (("config.yaml", "application/yaml"), ("meta.json", "application/json"))


class McapFile:
    """MCAP file being written; every method except ``add`` and ``end_chunk`` raises OSError."""

    def __init__(self, path: Path, metadata: Mapping[str, str], steps: StepMessages) -> None:
        """Start ``path`` with the run's configuration files attached; nothing is on disk before ``put``."""
        self._staged_file = StagedFile(path)
        self.n_chunks = 0
        """Number of chunks ended; the writer keeps about 1 kB in memory for each until the file is finished."""
        self._writer = Writer(
            cast(IO[bytes], self._staged_file), chunk_size=CHUNK_BYTES, compression=CompressionType.ZSTD
        )
        self._writer.start()
        self._writer.add_metadata(METADATA_NAME, dict(metadata))
        for name, media_type in _ATTACHMENTS:
            source = path.parent / name
            if source.is_file():
                self._writer.add_attachment(0, 0, name, media_type, read_file(source, MAX_JSON_BYTES))
        self._channels = {channel.topic: self._register(channel) for channel in channels(steps)}

    def _register(self, channel: Channel) -> int:
        schema = self._writer.register_schema(channel.message, "protobuf", channel.descriptors)
        return self._writer.register_channel(channel.topic, "protobuf", schema)

    def add(self, topic: str, t_ns: int, data: bytes, sequence: int = 0) -> None:
        """Add a message to the chunk."""
        t_ns = max(t_ns, 0)
        self._writer.add_message(self._channels[topic], t_ns, data, t_ns, sequence & 0xFFFFFFFF)

    def end_chunk(self) -> None:
        """End the chunk, so that ``put`` writes it."""
        self._writer.flush()  # type: ignore[no-untyped-call]
        self.n_chunks += 1

    def put(self) -> None:
        """Write the ended chunks to disk; on OSError the file is left as it was."""
        self._staged_file.put()

    def finish(self) -> None:
        """Write pending data and the index."""
        self._writer.finish()  # type: ignore[no-untyped-call]
        self._staged_file.put()

    def close(self) -> None:
        """Close the file; unwritten data are lost."""
        self._staged_file.close()

    @property
    def staged_bytes(self) -> int:
        """Bytes waiting for ``put``."""
        return self._staged_file.staged_bytes

    @property
    def written_bytes(self) -> int:
        """Bytes on disk."""
        return self._staged_file.written_bytes

    @property
    def size(self) -> int:
        """Bytes on disk plus bytes waiting for ``put``."""
        return self._staged_file.tell()
