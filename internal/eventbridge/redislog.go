package eventbridge

import (
	"context"
	"fmt"

	"go.uber.org/zap"
)

// redisLog takes the lines of the Redis client, which otherwise writes them to standard error.
type redisLog struct{ log *zap.Logger }

// Printf writes a line to the log.
func (l redisLog) Printf(_ context.Context, format string, args ...any) {
	l.log.Warn(fmt.Sprintf(format, args...))
}
