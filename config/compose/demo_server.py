"""The simulated vLLM in a container: it serves the container's network, where `demo.vllm` serves loopback alone."""

import sys

from demo import vllm

ADDRESS = "0.0.0.0"
"""Inside of the container; docker-compose.yml publishes the port on the host's loopback."""


class Server(vllm.Server):
    """On `ADDRESS`."""

    def server_bind(self) -> None:
        """Bind the port that was asked for."""
        self.server_address = (ADDRESS, int(self.server_address[1]))
        super().server_bind()


if __name__ == "__main__":
    vllm.Server = Server  # type: ignore[misc]
    sys.exit(vllm.main())
