package eventbridge

import (
	"context"
	"fmt"

	"go.uber.org/zap"
)

// redisLog takes the lines of the Redis client, which it writes to standard error otherwise.
type redisLog struct{ log *zap.Logger }

// Printf makes a line of the log.
func (l redisLog) Printf(_ context.Context, format string, args ...any) {
	l.log.Warn(fmt.Sprintf(format, args...))
}
