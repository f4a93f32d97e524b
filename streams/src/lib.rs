//! Event feeds and rolling windows over Redis Streams: keys, entry ids, the feed, script loading and supervised connections.
