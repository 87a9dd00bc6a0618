"""The terminal chat: a conversation, two ways to get answers, two ways to show them."""
