"""The library's side: its producers and consumers, in threads of their own, with one hop a batch into the event loop."""
