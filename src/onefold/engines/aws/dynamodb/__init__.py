"""Records, history and shared values in one DynamoDB table: `backend.py` combines them, `items.py` describes the items."""
