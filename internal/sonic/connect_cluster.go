package sonic

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/trial"
)

// tryCluster returns the trials of a Redis Cluster: each address of url, the state of the cluster,
// and its primaries. path is the path of the section.
func (c RedisConfig) tryCluster(path string) []trial.Trial {
	c.ConnectTimeout = min(c.ConnectTimeout, clusterTimeout) // the trial of the cluster asks several nodes in turn
	b, err := c.backend(zap.NewNop())
	if err != nil {
		return []trial.Trial{trial.Of(path+".url "+c.url(), err)}
	}
	client := func(address string) *redis.Client { return c.nodeClient(b, address) }
	var all []trial.Trial
	for _, address := range b.nodes {
		all = append(all, trial.Trial{Name: path + ".url, node " + address, Try: func(ctx context.Context) error {
			return checkNode(ctx, address, client, false)
		}})
	}
	// ask asks the first node that answers.
	ask := func(ctx context.Context, question func(address string, db *redis.Client) error) error {
		var errs []error
		for _, address := range b.nodes {
			db := client(address)
			defer func() { _ = db.Close() }()
			err := db.Ping(ctx).Err()
			var refused redis.Error
			if err == nil || errors.As(err, &refused) {
				return question(address, db)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	return append(all,
		trial.Trial{Name: path + ": state of the cluster", Try: func(ctx context.Context) error {
			return ask(ctx, func(_ string, db *redis.Client) error { return tryClusterState(ctx, db) })
		}},
		trial.Trial{Name: path + ": primaries of the cluster", Try: func(ctx context.Context) error {
			var m *cluster.Map
			if err := ask(ctx, func(address string, db *redis.Client) (err error) {
				m, err = cluster.Ask(ctx, db, address)
				return err
			}); err != nil {
				return err
			}
			unsuitable, unknown := checkNodes(ctx, addressesOf(m), client, true)
			return errors.Join(append(unsuitable, unknown...)...)
		}})
}

// tryClusterState returns an error unless all slots are served.
func tryClusterState(ctx context.Context, db *redis.Client) error {
	text, err := db.ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	if info := infoOf(text); info["cluster_state"] != "ok" || info["cluster_slots_ok"] != strconv.Itoa(cluster.Slots) {
		return fmt.Errorf("it is %q: %s of %d slots have a primary, and %s of them are served",
			info["cluster_state"], info["cluster_slots_assigned"], cluster.Slots, info["cluster_slots_ok"])
	}
	return nil
}
