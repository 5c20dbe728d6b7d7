"""Records, history and shared values in one DynamoDB table. `backend.py` is the whole; `items.py` describes the items."""
