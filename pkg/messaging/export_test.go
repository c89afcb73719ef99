package messaging

import "time"

// WrongChecksum is an entry whose checksum is wrong.
func WrongChecksum() []byte { return []byte{0x0e, 0x01, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2} }

// HurryReaders divides the time for which the client's readers, and Last, wait. It is called before
// there are any.
func (c *Client) HurryReaders(by time.Duration) {
	w := &c.readers.waits
	for _, d := range []*time.Duration{&w.ask, &w.prompt, &w.nothing, &w.quiet, &w.unshown} {
		*d /= by
	}
}

// SetResubscribeForChunks sets how soon c's sessions begin again after a message in chunks was
// given up.
func SetResubscribeForChunks(c *Client, d time.Duration) { c.consumers.resubscribeForChunks = d }
