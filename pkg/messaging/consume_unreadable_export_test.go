package messaging

import "time"

// SetChunksAgain sets how soon c's sessions begin again after a message in chunks was given up.
func SetChunksAgain(c *Client, d time.Duration) { c.waits.chunksAgain = d }
