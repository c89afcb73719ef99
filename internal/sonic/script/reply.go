package script

import (
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// IsReply reports whether err is an error reply of Redis that begins with one of prefixes.
func IsReply(err error, prefixes ...string) bool {
	var reply redis.Error
	return errors.As(err, &reply) && slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(reply.Error(), prefix) })
}
