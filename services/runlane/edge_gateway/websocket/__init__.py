"""`GET /v1/ws`: JSON-RPC 2.0 over WebSocket, several watches and commands on one connection."""
