package messaging

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
)

// reachTopic is a partition's name: a broker that creates missing topics does not create one
// when it is asked how many partitions this one has.
const reachTopic = "persistent://public/default/aviary-reach-partition-0"

// Reach returns nil once a broker of the cluster has answered, and tries until ctx ends or the
// client is closed. What it asks changes nothing. A refusal counts, too, such as that there is no
// such topic, or that this client may not know: that the cluster is there and has let the client
// in is what it says, not what the client may do. It is safe for concurrent use.
func (c *Client) Reach(ctx context.Context) error {
	ctx, done := eitherEnds(ctx, c.cluster.life)
	defer done()
	err := insist(ctx, c.cluster.log, func() error {
		_, err := callWithTimeout(ctx, c.cluster, func() ([]string, error) { return c.cluster.producers.TopicPartitions(reachTopic) }, nil)
		if err != nil && (permanent(err) || openingFailure(err, false) != nil) {
			err = nil // an answer all the same
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("messaging: no broker has answered: %w", err)
	}
	return nil
}

// Unreachable says why no broker of the service URL could be connected to some seconds ago; nil
// when one could, and while that is not known. The first call of an outage begins to look, for the
// next ones. The text has no addresses: it is fit for those who may not know them. It is safe for
// concurrent use, and does not wait.
func (c *Client) Unreachable() error {
	return withoutAddresses(c.cluster.reach.Err())
}

// withoutAddresses says what a failure to connect is, without the names and addresses in its text.
func withoutAddresses(err error) error {
	name, system, slow := (*net.DNSError)(nil), (*os.SyscallError)(nil), net.Error(nil)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &name) && name.IsNotFound:
		return errors.New("no such host")
	case errors.As(err, &name): // its text may have the addresses of name servers
		return errors.New("the host's name cannot be looked up")
	case errors.As(err, &system):
		return system
	case errors.As(err, &slow) && slow.Timeout():
		return errors.New("i/o timeout")
	default:
		return errors.New("no connection")
	}
}
