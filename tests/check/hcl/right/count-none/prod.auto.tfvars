legacy = false
