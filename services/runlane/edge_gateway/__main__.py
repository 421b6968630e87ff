"""`python -m runlane.edge_gateway`."""

from runlane.edge_gateway.app import NAME, serve
from runlane.edge_gateway.settings import EdgeGatewaySettings
from runlane.hosting.service import main

if __name__ == "__main__":
    main(NAME, lambda connections: serve(EdgeGatewaySettings(), connections))
