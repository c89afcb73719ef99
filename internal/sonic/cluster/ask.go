package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	errNoSlots = errors.New("it knows no slots: it is in no cluster, or no primary has slots")
	errAnswer  = errors.New("its answer to CLUSTER SLOTS has an unknown form")
)

// askNode asks a node for its view. One that knows no slots has none: it was removed, or it has not
// joined yet, and others know better.
func (c *Cluster) askNode(ctx context.Context, address string) (v view, err error) {
	client := c.clients[address]
	if client == nil {
		client = redis.NewClient(&redis.Options{
			Addr: address, Username: c.cfg.Username, Password: c.cfg.Password, TLSConfig: c.cfg.TLS, ClientName: "sonic", DisableIdentity: true,
			MaxRetries: -1, DialerRetries: 1, PoolSize: 1, Protocol: 2,
			DialTimeout: c.cfg.Timeout, ReadTimeout: c.cfg.Timeout, WriteTimeout: c.cfg.Timeout, ContextTimeoutEnabled: true,
		})
		c.clients[address] = client
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	// The epoch comes first: if the slots change between the two, they are newer than their epoch,
	// which does no harm.
	pipe := client.Pipeline()
	info, slots := pipe.ClusterInfo(ctx), pipe.Do(ctx, "CLUSTER", "SLOTS")
	if _, err := pipe.Exec(ctx); err != nil {
		return v, err
	}
	if v.epoch, err = currentEpoch(info.Val()); err != nil {
		return v, err
	}
	reply, err := slots.Slice()
	if err != nil {
		return v, err
	}
	if v.ranges, v.nodes, err = parseSlots(reply, address); err != nil {
		return v, err
	}
	if len(v.ranges) == 0 {
		return v, errNoSlots
	}
	return v, nil
}

// currentEpoch reads the reply to CLUSTER INFO.
func currentEpoch(info string) (int64, error) {
	for line := range strings.Lines(info) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), "cluster_current_epoch:"); found {
			epoch, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("its cluster_current_epoch is %q", value)
			}
			return epoch, nil
		}
	}
	return 0, errors.New("its CLUSTER INFO has no cluster_current_epoch")
}

// parseSlots reads the reply to CLUSTER SLOTS of the node at asked. Each of its elements is a range:
// first slot, last slot, primary, replicas. nodes are the addresses of all of them, each once.
func parseSlots(reply []any, asked string) (ranges []Range, nodes []string, err error) {
	for _, element := range reply {
		r, _ := element.([]any)
		if len(r) < 3 {
			return nil, nil, errAnswer
		}
		first, ok1 := r[0].(int64)
		last, ok2 := r[1].(int64)
		if !ok1 || !ok2 {
			return nil, nil, errAnswer
		}
		for i, element := range r[2:] {
			n, ok := parseNode(element, asked)
			if !ok {
				return nil, nil, errAnswer
			}
			if i == 0 {
				ranges = append(ranges, Range{First: int(first), Last: int(last), Primary: n})
			}
			if !slices.Contains(nodes, n.Address) {
				nodes = append(nodes, n.Address)
			}
		}
	}
	return ranges, nodes, nil
}

// parseNode reads a node: endpoint, port, id, and other names of it. cluster-preferred-endpoint-type
// says what the endpoint is. It is NULL for the host that was asked, and so is an empty one: a node
// that has not met another does not know its own address. "?" is a host name that is not set.
func parseNode(element any, asked string) (p Primary, ok bool) {
	n, _ := element.([]any)
	if len(n) < 3 {
		return p, false
	}
	port, ok1 := n[1].(int64)
	id, ok2 := n[2].(string)
	if !ok1 || !ok2 {
		return p, false
	}
	host, _ := n[0].(string)
	if host == "?" {
		host = ""
		if len(n) > 3 {
			host = otherName(n[3], "ip")
		}
	}
	if host == "" {
		host, _, _ = net.SplitHostPort(asked)
	}
	return Primary{ID: id, Address: net.JoinHostPort(host, strconv.FormatInt(port, 10))}, true
}

// otherName returns a value of the list of names and values, or "" if it has none.
func otherName(list any, name string) string {
	words, _ := list.([]any)
	for i := 0; i+1 < len(words); i += 2 {
		if words[i] == name {
			value, _ := words[i+1].(string)
			return value
		}
	}
	return ""
}
