package script

// InMany reports whether the function sonic_many can run a command, whose name is in lower case. It
// accepts only writes that may need memory, because an out-of-memory error concerns all writes of a
// call. Redis checks its memory limit only before the call. So sonic_many accepts no write that can
// need much more memory than its arguments: APPEND, SETRANGE and SETBIT may turn a few bytes into a
// long string, and publish all of it.
//
// The call is FCALL sonic_many 1 <outbox> <mode>, followed for each write by a head and the
// arguments. The head is the command in upper case, a space and the number of arguments as one
// digit. The reply is the list of the replies. The writes run in order, and no other command runs
// between them. The mode has neither of the flags p and t.
func InMany(command string) bool {
	switch command {
	case "set", "setex", "psetex", "setnx", "incr", "decr", "incrby", "decrby", "incrbyfloat",
		"hset", "hmset", "hsetnx", "hincrby", "hincrbyfloat", "sadd", "zadd", "zincrby", "lpush", "rpush", "lpushx", "rpushx":
		return true
	default:
		return false
	}
}
