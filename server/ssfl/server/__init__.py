"""The coordinator: asyncio gRPC at the edge, a pure state machine inside. No torch."""
