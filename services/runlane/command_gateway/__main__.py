"""`python -m runlane.command_gateway`."""

from runlane.command_gateway.app import NAME, serve
from runlane.command_gateway.settings import CommandGatewaySettings
from runlane.hosting.service import main

if __name__ == "__main__":
    main(NAME, lambda connections: serve(CommandGatewaySettings(), connections))
