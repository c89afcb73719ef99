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

// SetErrors gives each command of a pipeline its error. It gets the result of the pipeline: if Redis
// has refused the connection, by its password for instance, go-redis gives the commands none.
func SetErrors(commands []redis.Cmder, err error) {
	if err == nil || slices.ContainsFunc(commands, func(c redis.Cmder) bool { return c.Err() != nil }) {
		return
	}
	for _, c := range commands {
		c.SetErr(err)
	}
}
