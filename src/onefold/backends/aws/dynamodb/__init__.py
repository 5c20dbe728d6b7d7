"""Records, history and shared values in one DynamoDB table. `books.py` has the whole; `items.py` says what lies where."""
