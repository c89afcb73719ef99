package script

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrUnfit says that the library cannot work with this version of Redis.
var ErrUnfit = errors.New("unfit Redis version")

// Doer sends one command to Redis. All clients of go-redis implement it.
type Doer interface {
	Do(ctx context.Context, args ...any) *redis.Cmd
}

// Load makes sure that Redis has this version of the library. If Redis has the same version, Load
// changes nothing. Otherwise Load loads it: a library that was just loaded is not open, and refuses
// writes. Load returns [ErrUnfit] if Redis is not version 7.
func Load(ctx context.Context, c Doer) error {
	if err := checkVersion(ctx, c); err != nil {
		return err
	}
	_, version, err := Library()
	if err != nil {
		return err
	}
	if loaded, err := c.Do(ctx, "FCALL_RO", "sonic_version", 0).Text(); err == nil && loaded == version {
		return nil
	}
	return Replace(ctx, c)
}

// Replace loads the library even if Redis has this version of it. Redis replicates this, so that
// afterwards the library is not open here and in all replicas. This matters for a former primary
// that became a replica without a restart: its library is still open, and would take writes at once
// if it is promoted again, however old its data are.
func Replace(ctx context.Context, c Doer) error {
	text, _, err := Library()
	if err != nil {
		return err
	}
	if err := c.Do(ctx, "FUNCTION", "LOAD", "REPLACE", text).Err(); err != nil {
		return fmt.Errorf("load the function library: %w", err)
	}
	return nil
}

// checkVersion returns an error for a Redis whose commands the library does not know: older
// versions than 7.0 have no functions, and later versions than 7 change replies and add types.
func checkVersion(ctx context.Context, c Doer) error {
	info, err := c.Do(ctx, "INFO", "server").Text()
	if err != nil {
		return fmt.Errorf("ask Redis for its version: %w", err)
	}
	for line := range strings.Lines(info) {
		version, found := strings.CutPrefix(strings.TrimSpace(line), "redis_version:")
		if !found {
			continue
		}
		major, _, _ := strings.Cut(version, ".")
		if number, err := strconv.Atoi(major); err != nil || number != 7 {
			return fmt.Errorf("%w %s: Sonic works with Redis 7", ErrUnfit, version)
		}
		return nil
	}
	return fmt.Errorf("%w: INFO reports none", ErrUnfit)
}
