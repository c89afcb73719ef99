package messaging

import "time"

// chunksExpire is how long the underlying client waits for the rest of a chunked message, whose
// chunks it then forgets, and a consumer's acknowledges. Of each chunked message it keeps a
// goroutine as long, and with it what the consumer had received, also behind its end: nothing
// stops that.
const chunksExpire = 10 * time.Minute
