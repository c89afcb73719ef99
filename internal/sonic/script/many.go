package script

// InMany reports whether the function sonic_many runs a command, whose name is in lower case. It takes short writes that need
// memory: an error of Redis for want of it is about all that are in one call. Redis looks at its bound of memory before the call only, so it takes
// no write whose cost is not in its arguments: APPEND, SETRANGE and SETBIT may make a long string of few bytes, and ship the whole of it.
//
// The call is FCALL sonic_many 1 <outbox> <mode>, and then for each write a head, which is the command in upper case, a space and the number
// of the arguments, one digit; and the arguments. Its reply is the list of the replies. The writes run in their order and, what is more,
// without anything between them. The mode has no transaction and is not [Mode.Published].
func InMany(command string) bool {
	switch command {
	case "set", "setex", "psetex", "setnx", "incr", "decr", "incrby", "decrby", "incrbyfloat",
		"hset", "hmset", "hsetnx", "hincrby", "hincrbyfloat", "sadd", "zadd", "zincrby", "lpush", "rpush", "lpushx", "rpushx":
		return true
	default:
		return false
	}
}
