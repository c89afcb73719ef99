package messaging

import "time"

// WrongChecksum is an entry whose checksum is wrong.
func WrongChecksum() []byte { return []byte{0x0e, 0x01, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2} }

// HurryReaders divides the time for which the client's readers, and Last, wait. It is called before
// there are any.
func (c *Client) HurryReaders(by time.Duration) {
	w := &c.readers.Waits
	for _, d := range []*time.Duration{&w.Ask, &w.Prompt, &w.Nothing, &w.Quiet, &w.Unshown} {
		*d /= by
	}
}

// SetResubscribeForChunks sets how soon c's sessions begin again after a message in chunks was
// given up.
func SetResubscribeForChunks(c *Client, d time.Duration) { c.consumers.ResubscribeForChunks = d }

// SetAckLanding sets how long an acknowledgement may be on its way. A connection that ends before
// that may lose it.
func SetAckLanding(c *Client, d time.Duration) { c.consumers.AckLanding = d }

// SetReadersDiscoverEvery sets how often readers look for new partitions.
func (c *Client) SetReadersDiscoverEvery(d time.Duration) { c.readers.Waits.Discover = d }

// SetRedriveIdle sets for how long a redrive waits for partitions that deliver nothing.
func SetRedriveIdle(c *Client, d time.Duration) { c.redriveIdle = d }
