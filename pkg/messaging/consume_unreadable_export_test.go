package messaging

import "time"

// SetResubscribeForChunks sets how soon c's sessions begin again after a message in chunks was
// given up.
func SetResubscribeForChunks(c *Client, d time.Duration) { c.consumers.resubscribeForChunks = d }
