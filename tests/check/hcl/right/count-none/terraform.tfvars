legacy = true # an older value
