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

var errNoSlots = errors.New("it reports no slots: it is not in a cluster, or no primary has slots")

// askNode asks a node for its view. One that knows no slots has none: it was removed, or it has not
// joined yet, and others know better.
func (c *Cluster) askNode(ctx context.Context, address string) (v view, err error) {
	client := c.clients[address]
	if client == nil {
		client = redis.NewClient(&redis.Options{
			Addr: address, Username: c.cfg.Username, Password: c.cfg.Password, TLSConfig: c.cfg.TLS, ClientName: "sonic", DisableIdentity: true,
			MaxRetries: -1, DialerRetries: 1, PoolSize: 1, Protocol: 2,
			DialTimeout: requestTimeout, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, ContextTimeoutEnabled: true,
		})
		c.clients[address] = client
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return ask(ctx, client, address)
}

// Ask returns the map that the node at an address has.
func Ask(ctx context.Context, node *redis.Client, address string) (*Map, error) {
	v, err := ask(ctx, node, address)
	if err != nil {
		return nil, err
	}
	return NewMap(v.ranges), nil
}

// ask asks the node at an address for its view.
func ask(ctx context.Context, client *redis.Client, address string) (v view, err error) {
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
	v.ranges, v.nodes = parseSlots(reply, address)
	if len(v.ranges) == 0 {
		return v, errNoSlots
	}
	return v, nil
}

// currentEpoch reads the reply to CLUSTER INFO.
func currentEpoch(info string) (int64, error) {
	_, rest, _ := strings.Cut(info, "cluster_current_epoch:")
	text, _, _ := strings.Cut(rest, "\r\n")
	epoch, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("its cluster_current_epoch is %q", text)
	}
	return epoch, nil
}

// parseSlots reads the reply to CLUSTER SLOTS of the node at asked. Each of its elements is a range:
// first slot, last slot, primary, replicas. nodes are the addresses of all of them, each once. The
// client of go-redis does not read this reply if an endpoint is NULL.
func parseSlots(reply []any, asked string) (ranges []Range, nodes []string) {
	for _, element := range reply {
		r, _ := element.([]any)
		first, _ := r[0].(int64)
		last, _ := r[1].(int64)
		for i, element := range r[2:] {
			n := parseNode(element, asked)
			if i == 0 {
				ranges = append(ranges, Range{First: int(first), Last: int(last), Primary: n})
			}
			if !slices.Contains(nodes, n.Address) {
				nodes = append(nodes, n.Address)
			}
		}
	}
	return ranges, nodes
}

// parseNode reads a node: endpoint, port, id, and other names of it. cluster-preferred-endpoint-type
// says what the endpoint is. It is NULL for the host that was asked, and so is an empty one: a node
// that has not met another does not know its own address. "?" is a host name that is not set.
func parseNode(element any, asked string) Primary {
	n, _ := element.([]any)
	host, _ := n[0].(string)
	port, _ := n[1].(int64)
	id, _ := n[2].(string)
	if host == "?" {
		host = ""
		if len(n) > 3 {
			names, _ := n[3].([]any) // name, value, ..
			if i := slices.Index(names, "ip"); i >= 0 {
				host, _ = names[i+1].(string)
			}
		}
	}
	if host == "" {
		host, _, _ = net.SplitHostPort(asked)
	}
	return Primary{ID: id, Address: net.JoinHostPort(host, strconv.FormatInt(port, 10))}
}
