package script_test

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/test/stack"
)

// A row is a command on a state, and the effects that its entry has: an effect per line, its values
// separated by a space; "" is an empty value, DUMP a dump, MS a time of now, BASE the version that
// L names.
type row struct {
	before  string // commands, one per line, past Sonic
	command string // the last of the lines; those before it are executed first, by Sonic
	effects string
	any     bool // the reply differs from run to run
}

const far = "32503680000000" // in the year 3000

var rows = []row{
	{"", "SET k v", `S l DB k v ""`, false},
	{"SET k w PXAT " + far, "SET k v", `S l DB k v ""`, false},
	{"SET k w PXAT " + far, "SET k v KEEPTTL", `S l DB k v ` + far, false},
	{"", "SET k v EX 100", `S l DB k v MS`, false},
	{"", "SET k v px 100000", `S l DB k v MS`, false},
	{"", "SET k v EXAT 32503680000", `S l DB k v ` + far, false},
	{"", "SET k v PXAT " + far, `S l DB k v ` + far, false},
	{"SET k w", "SET k v PXAT 1000", `D l DB k`, false},
	{"", "SET k v PXAT 9223372036854775807", `S l DB k v 9223372036854775807`, false},
	{"SET k w", "SET k v NX", "", false},
	{"", "SET k v NX", `S l DB k v ""`, false},
	{"", "SET k v XX", "", false},
	{"SET k w", "SET k v XX", `S l DB k v ""`, false},
	{"SET k w", "SET k v GET", `S l DB k v ""`, false},
	{"", "SET k v GET", `S l DB k v ""`, false},
	{"SET k w", "SET k v NX GET", "", false},
	{"", "SET k v NX GET", `S l DB k v ""`, false},
	{"SET k w", "SET k v XX GET", `S l DB k v ""`, false},
	{"", "SET k v XX GET", "", false},
	{"SADD k w", "SET k v GET", "", false},
	{"SADD k w", "SET k v", `S l DB k v ""`, false},
	{"", "SET k v NX XX", "", false},
	{"", "SET k", "", false},
	{"", "SET", "", false},
	{"", "SET k v EX 0", "", false},
	{"", "SET k v EX x", "", false},
	{"", "SET k v EX", "", false},
	{"", "SETEX k 100 v", `S l DB k v MS`, false},
	{"", "SETEX k 0 v", "", false},
	{"", "PSETEX k 100000 v", `S l DB k v MS`, false},
	{"", "PSETEX k v", "", false},
	{"", "SETNX k v", `S l DB k v ""`, false},
	{"SET k w", "SETNX k v", "", false},
	{"SET k w PXAT " + far, "GETSET k v", `S l DB k v ""`, false},
	{"", "GETSET k v", `S l DB k v ""`, false},
	{"SADD k w", "GETSET k v", "", false},
	{"SET k w", "GETDEL k", `D l DB k`, false},
	{"", "GETDEL k", "", false},
	{"SADD k w", "GETDEL k", "", false},
	{"SET k w", "GETEX k", "", false},
	{"SET k w", "GETEX k PXAT " + far, `E l DB k ` + far, false},
	{"SET k w", "GETEX k EX 100", `E l DB k MS`, false},
	{"SET k w", "GETEX k PXAT 1000", `D l DB k`, false},
	{"SET k w PXAT " + far, "GETEX k PERSIST", `E l DB k ""`, false},
	{"SET k w", "GETEX k PERSIST", "", false},
	{"", "GETEX k EX 100", "", false},
	{"SET k w", "GETEX k EX", "", false},
	{"", "MSET k v l w", "S l DB k v \"\"\nS l DB l w \"\"", false},
	{"", "MSET k v l", "", false},
	{"", "MSETNX k v l w", "S l DB k v \"\"\nS l DB l w \"\"", false},
	{"SET l x", "MSETNX k v l w", "", false},
	{"", "MSETNX k v l", "", false},
	{"", "INCR k", `S l DB k 1 ""`, false},
	{"SET k 7 PXAT " + far, "INCR k", `S l DB k 8 ` + far, false},
	{"SET k x", "INCR k", "", false},
	{"SET k 9223372036854775807", "INCR k", "", false},
	{"SET k 9007199254740991", "INCR k", `S l DB k 9007199254740992 ""`, false},
	{"SET k 9007199254740992", "INCR k", `S l DB k 9007199254740993 ""`, false},
	{"SET k -9007199254740992", "DECR k", `S l DB k -9007199254740993 ""`, false},
	{"SADD k x", "INCR k", "", false},
	{"SET k 7", "DECR k", `S l DB k 6 ""`, false},
	{"SET k 7", "INCRBY k -3", `S l DB k 4 ""`, false},
	{"SET k 7", "INCRBY k x", "", false},
	{"SET k 7", "INCRBY k", "", false},
	{"SET k 7", "DECRBY k 3", `S l DB k 4 ""`, false},
	{"SET k 7", "DECRBY k -9223372036854775808", "", false},
	{"SET k 10.5 PXAT " + far, "INCRBYFLOAT k 0.1", `S l DB k 10.6 ` + far, false},
	{"SET k x", "INCRBYFLOAT k 0.1", "", false},
	{"SET k a PXAT " + far, "APPEND k b", `R l DB k DUMP ` + far, false},
	{"", "APPEND k b", `R l DB k DUMP ""`, false},
	{"", `APPEND k ""`, `R l DB k DUMP ""`, false},
	{"SET k a", `APPEND k ""`, "", false},
	{"SADD k a", "APPEND k b", "", false},
	{"SET k hello", "SETRANGE k 1 a", `R l DB k DUMP ""`, false},
	{"SET k hello", `SETRANGE k 1 ""`, "", false},
	{"SET k hello", "SETRANGE k -1 a", "", false},

	{"SET k v\nSET l w", "DEL k m l k", "D l DB k\nD l DB l", false},
	{"", "DEL k", "", false},
	{"", "DEL", "", false},
	{"SET k v", "UNLINK k", "D l DB k", false},
	{"SET k v", "EXPIRE k 100", "E l DB k MS", false},
	{"SET k v", "EXPIRE k -1", "D l DB k", false},
	{"SET k v", "EXPIRE k 100 XX", "", false},
	{"SET k v", "EXPIRE k 100 NX GT", "", false},
	{"SET k v", "EXPIRE k x", "", false},
	{"", "EXPIRE k 100", "", false},
	{"SET k v", "PEXPIRE k 100000", "E l DB k MS", false},
	{"HSET k f v", "EXPIREAT k 32503680000", "E l DB k " + far, false},
	{"SET k v", "PEXPIREAT k " + far, "E l DB k " + far, false},
	{"SET k v", "PEXPIREAT k 1000", "D l DB k", false},
	{"SET k v PXAT " + far, "PERSIST k", `E l DB k ""`, false},
	{"SET k v", "PERSIST k", "", false},
	{"SET k v PXAT " + far, "RENAME k l", "R l DB l DUMP " + far + "\nD l DB k", false},
	{"SET k v", "RENAME k k", "", false},
	{"", "RENAME k l", "", false},
	{"HSET k f v g w\nSET l x", "RENAME k l", "D l DB l\nH l DB l \"\" f v g w\nD l DB k", false},
	{"SET k v\nSET l w", "RENAMENX k l", "", false},
	{"RPUSH k v", "RENAMENX k l", "R l DB l DUMP \"\"\nD l DB k", false},
	{"SADD k v", "COPY k l", "D l DB l\nA l DB l \"\" v", false},
	{"SADD k v\nSET l w", "COPY k l", "", false},
	{"SADD k v\nSET l w", "COPY k l REPLACE", "D l DB l\nA l DB l \"\" v", false},
	{"ZADD k 1.5 v\nPEXPIREAT k " + far, "COPY k l DB 5", "D l 5 l\nZ l 5 l " + far + " 1.5 v", false},
	{"", "COPY k l DB 99", "", false},
	{"SET k v", "MOVE k 5", "R l 5 k DUMP \"\"\nD l DB k", false},
	{"", "MOVE k 5", "", false},
	{"SET k v", "MOVE k 99", "", false},
	{"", "RESTORE k 0 x", "", false},
	{"RPUSH k 3 1 2", "SORT k STORE l", "R l DB l DUMP \"\"", false},
	{"SET l v", "SORT k BY nosort STORE l", "D l DB l", false},
	{"", "SORT k STORE l", "", false},
	{"RPUSH k 3 1 2", "SORT k LIMIT 0 2 GET # DESC", "", false},
	{"RPUSH k 3 x 2", "SORT k STORE l", "", false},

	{"", "HSET k f v", `H l DB k "" f v`, false},
	{"HSET k f v", "HSET k f v", `H l DB k "" f v`, false},
	{"HSET k a b\nPEXPIREAT k " + far, "HSET k f v g w", `H l DB k ` + far + ` f v g w`, false},
	{"", "HSET k f", "", false},
	{"", "HSET k f v g", "", false},
	{"SET k a", "HSET k f v", "", false},
	{"", "HMSET k f v g w", `H l DB k "" f v g w`, false},
	{"", "HMSET k f v g", "", false},
	{"", "HSETNX k f v", `H l DB k "" f v`, false},
	{"HSET k f w", "HSETNX k f v", "", false},
	{"", "HINCRBY k f 5", `H l DB k "" f 5`, false},
	{"HSET k f 9007199254740992", "HINCRBY k f 1", `H l DB k "" f 9007199254740993`, false},
	{"HSET k f x", "HINCRBY k f 5", "", false},
	{"HSET k f 1.5", "HINCRBYFLOAT k f 0.25", `H l DB k "" f 1.75`, false},
	{"HSET k f 1 g 2 h 3", "HDEL k f x g f", `h l DB k "" f g`, false},
	{"HSET k f 1", "HDEL k x", "", false},
	{"HSET k f 1\nPEXPIREAT k " + far, "HDEL k f", "h l DB k " + far + " f\nE l DB k \"\"", false},
	{"", "HDEL k f g", "", false},
	{"", "HDEL k", "", false},
	{"SET k v", "HDEL k f g", "", false},
	{"SET k v", "HDEL k f", "", false},

	{"", "SADD k a b", `A l DB k "" a b`, false},
	{"SADD k a", "SADD k a", "", false},
	{"SET k a", "SADD k a", "", false},
	{"", "SADD k", "", false},
	{"SADD k a b c\nPEXPIREAT k " + far, "SREM k a x b", "a l DB k " + far + " a b", false},
	{"SADD k a b c\nPEXPIREAT k " + far, "SREM k a b c", "a l DB k " + far + " a b c\nE l DB k \"\"", false},
	{"SET k a", "SREM k a", "", false},
	{"SADD k a", "SREM k b", "", false},
	{"SADD k a", "SMOVE k l a", "a l DB k \"\" a\nA l DB l \"\" a", false},
	{"SADD k a", "SMOVE k k a", "", false},
	{"SADD k a", "SMOVE k l b", "", false},
	{"SADD k a\nSET l x", "SMOVE k l a", "", false},
	{"SADD k a", "SPOP k", `a l DB k "" a`, false},
	{"SADD k a", "SPOP k 5", `a l DB k "" a`, false},
	{"", "SPOP k", "", false},
	{"", "SPOP k 5", "", false},
	{"SADD k a", "SPOP k 0", "", false},
	{"SADD k a", "SPOP k -1", "", false},
	{"SADD k a\nSADD l b", "SUNIONSTORE m k l", "D l DB m\nA l DB m \"\" * *", false},
	{"SADD m a", "SINTERSTORE m k l", "D l DB m", false},
	{"", "SINTERSTORE m k l", "", false},
	{"SADD k a b\nSADD l b", "SDIFFSTORE k k l", "D l DB k\nA l DB k \"\" a", false},
	{"SET k a", "SDIFFSTORE m k l", "", false},

	{"", "ZADD k 1 a 2.50 b", `Z l DB k "" 1 a 2.50 b`, false},
	{"", "ZADD k 1 a x b", "", false},
	{"", "ZADD k 1", "", false},
	{"", "ZADD k nan a", "", false},
	{"SET k v", "ZADD k 1 a", "", false},
	{"ZADD k 1 a", "ZADD k nx 2 a 3 b", `Z l DB k "" 3 b`, false},
	{"ZADD k 1 a", "ZADD k XX CH 2 a 3 b", `Z l DB k "" 2 a`, false},
	{"ZADD k 5 a 1 b", "ZADD k GT 2 a 3 b 4 c", `Z l DB k "" 3 b 4 c`, false},
	{"ZADD k 1 a", "ZADD k NX GT 2 a", "", false},
	{"ZADD k 1 a", "ZADD k XX 1 a", "", false},
	{"ZADD k 1 a", "ZADD k INCR 1.5 a", `Z l DB k "" 2.5 a`, false},
	{"ZADD k 1 a", "ZADD k NX INCR 1.5 a", "", false},
	{"ZADD k 1 a", "ZADD k INCR 1.5 a 2 b", "", false},
	{"ZADD k 1 a", "ZADD k CH", "", false},
	{"ZADD k 0.1 a\nPEXPIREAT k " + far, "ZINCRBY k 0.2 a", `Z l DB k ` + far + ` 0.30000000000000004 a`, false},
	{"", "ZINCRBY k inf a", `Z l DB k "" inf a`, false},
	{"", "ZINCRBY k 3 a", `Z l DB k "" 3 a`, false},
	{"", "ZINCRBY k x a", "", false},
	{"ZADD k 1 a 2 b", "ZREM k a x a", `z l DB k "" a`, false},
	{"ZADD k 1 a 2 b", "ZREM k x", "", false},
	{"ZADD k 1 a 2 b 3 c", "ZREMRANGEBYSCORE k (1 +inf", `z l DB k "" b c`, false},
	{"ZADD k 1 a 2 b 3 c", "ZREMRANGEBYSCORE k x +inf", "", false},
	{"ZADD k 1 a 2 b 3 c", "ZREMRANGEBYSCORE k 1", "", false},
	{"ZADD k 1 a 2 b 3 c\nPEXPIREAT k " + far, "ZREMRANGEBYRANK k 0 -1", "z l DB k " + far + " a b c\nE l DB k \"\"", false},
	{"ZADD k 0 a 0 b 0 c", "ZREMRANGEBYLEX k [b +", `z l DB k "" b c`, false},
	{"ZADD k 0 a 0 b 0 c", "ZREMRANGEBYLEX k b +", "", false},
	{"ZADD k 1 a 2 b", "ZPOPMIN k", `z l DB k "" a`, false},
	{"ZADD k 1.5 a 2 b", "ZPOPMAX k 5", `z l DB k "" b a`, false},
	{"", "ZPOPMIN k", "", false},
	{"", "ZPOPMIN k 2", "", false},
	{"ZADD k 1 a", "ZPOPMIN k 0", "", false},
	{"ZADD k 1 a", "ZPOPMIN k -1", "", false},
	{"ZADD l 1.5 a inf b\nPEXPIREAT l " + far, "ZMPOP 2 k l MIN COUNT 5", "z l DB l " + far + " a b\nE l DB l \"\"", false},
	{"", "ZMPOP 2 k l MIN", "", false},
	{"", "ZMPOP 0 k l MIN", "", false},
	{"", "ZMPOP 5 k l MIN", "", false},
	{"ZADD k 1 a\nZADD l 2 a 3 b", "ZUNIONSTORE m 2 k l WEIGHTS 2 3", "D l DB m\nZ l DB m \"\" 8 a 9 b", false},
	{"ZADD m 1 a", "ZINTERSTORE m 2 k l", "D l DB m", false},
	{"ZADD k 1 a 2 b", "ZDIFFSTORE m 2 k l", "D l DB m\nZ l DB m \"\" 1 a 2 b", false},
	{"ZADD k 1 a 2 b", "ZRANGESTORE m k 1 -1", "D l DB m\nZ l DB m \"\" 2 b", false},
	{"ZADD k 1 a 2 b", "ZRANGESTORE m k x -1", "", false},
	{"ZADD k 1 a 2 b", "ZUNIONSTORE m x k", "", false},

	{"RPUSH k a\nPEXPIREAT k " + far, "LPUSH k b c", "R l DB k DUMP " + far, false}, // nothing is known of what was before
	{"RPUSH k a\nPEXPIREAT k " + far, "LPUSH k b\nLPUSH k c d", "L l DB k BASE " + far + " 4 LPUSH c d", false},
	{"RPUSH k a\nPEXPIREAT k " + far, "LPUSH k b\nPERSIST k\nLPUSH k c d", "L l DB k BASE \"\" 4 LPUSH c d", false},
	{"", "RPUSH k b c", "R l DB k DUMP \"\"", false},
	{"", "RPUSH k b c\nRPUSH k d", "L l DB k BASE \"\" 3 RPUSH d", false},
	{"", "RPUSH k b\nRPUSH k a b c", "L l DB k BASE \"\" 4 RPUSH a b c", false},
	{"", "RPUSH k b\nDEL k\nRPUSH k a", "R l DB k DUMP \"\"", false},
	{"SET k v", "RPUSH k b c", "", false},
	{"", "RPUSH k", "", false},
	{"", "LPUSHX k b", "", false},
	{"RPUSH k a", "RPUSHX k b", "R l DB k DUMP \"\"", false},
	{"", "RPUSH k a\nRPUSHX k b", "L l DB k BASE \"\" 2 RPUSH b", false},
	{"", "RPUSH k a\nLPUSHX k b", "L l DB k BASE \"\" 2 LPUSH b", false},
	{"RPUSH k a b", "LPOP k", "R l DB k DUMP \"\"", false},
	{"", "RPUSH k a b\nLPOP k", "L l DB k BASE \"\" 1 LPOP", false},
	{"", "RPUSH k a b c d\nRPOP k 2", "L l DB k BASE \"\" 2 RPOP 2", false},
	{"", "RPUSH k a b\nRPOP k 9", "D l DB k", false},
	{"RPUSH k a b", "RPOP k 2", "D l DB k", false},
	{"RPUSH k a b", "RPOP k 0", "", false},
	{"RPUSH k a b", "RPOP k -1", "", false},
	{"", "LPOP k", "", false},
	{"", "LPOP k 2", "", false},
	{"", "LPOP k 0", "", false},
	{"RPUSH k a b a", "LREM k 0 a", "R l DB k DUMP \"\"", false},
	{"", "RPUSH k a b a\nLREM k -1 a", "L l DB k BASE \"\" 2 LREM -1 a", false},
	{"", "RPUSH k a a\nLREM k 0 a", "D l DB k", false},
	{"RPUSH k a b a", "LREM k 0 x", "", false},
	{"", "RPUSH k a b a\nLSET k 1 x", "L l DB k BASE \"\" 3 LSET 1 x", false},
	{"RPUSH k a b a", "LSET k 9 x", "", false},
	{"", "LSET k 9 x", "", false},
	{"", "RPUSH k a b a\nLINSERT k before b x", "L l DB k BASE \"\" 4 LINSERT before b x", false},
	{"RPUSH k a b a", "LINSERT k BEFORE y x", "", false},
	{"", "LINSERT k BEFORE y x", "", false},
	{"", "LINSERT k NEAR y x", "", false},
	{"", "RPUSH k a b c\nLTRIM k 1 1", "L l DB k BASE \"\" 1 LTRIM 1 1", false},
	{"RPUSH k a b c", "LTRIM k 0 -1", "", false},
	{"RPUSH k a b c", "LTRIM k 5 9", "D l DB k", false},
	{"SET k v", "LTRIM k 5 9", "", false},
	{"RPUSH k a b c", "LMOVE k l LEFT RIGHT", "R l DB k DUMP \"\"\nR l DB l DUMP \"\"", false},
	{"", "RPUSH k a b c\nLMOVE k l LEFT RIGHT", "L l DB k BASE \"\" 2 LPOP\nR l DB l DUMP \"\"", false},
	{"", "RPUSH k a b c\nRPUSH l x\nLMOVE k l right left", "L l DB k BASE \"\" 2 RPOP\nL l DB l BASE \"\" 2 LPUSH c", false},
	{"", "RPUSH k a\nRPUSH l x\nLMOVE k l LEFT RIGHT", "D l DB k\nL l DB l BASE \"\" 2 RPUSH a", false},
	{"", "RPUSH k a b c\nLMOVE k k LEFT RIGHT", "L l DB k BASE \"\" 3 LMOVE LEFT RIGHT", false},
	{"", "RPUSH k a b c\nRPOPLPUSH k k", "L l DB k BASE \"\" 3 LMOVE RIGHT LEFT", false},
	{"RPUSH k a", "RPOPLPUSH k l", "D l DB k\nR l DB l DUMP \"\"", false},
	{"", "RPUSH k a b\nRPUSH l x\nRPOPLPUSH k l", "L l DB k BASE \"\" 1 RPOP\nL l DB l BASE \"\" 2 LPUSH b", false},
	{"", "RPOPLPUSH k l", "", false},
	{"RPUSH k a\nSET l x", "RPOPLPUSH k l", "", false},
	{"", "LMOVE k l UP RIGHT", "", false},
	{"", "RPUSH l a b\nLMPOP 2 k l LEFT COUNT 1", "L l DB l BASE \"\" 1 LPOP 1", false},
	{"", "RPUSH l a b c\nLMPOP 1 l right COUNT 2", "L l DB l BASE \"\" 1 RPOP 2", false},
	{"", "LMPOP 2 k l LEFT", "", false},
	{"", "LMPOP x k l LEFT", "", false},
	{"", "RPUSH k 3 1 2\nSORT k STORE l\nRPUSH l 4", "L l DB l BASE \"\" 4 RPUSH 4", false},
	{"", "RPUSH k a b\nRENAME k l\nRPUSH l c", "L l DB l BASE \"\" 3 RPUSH c", false},
	{"", "RPUSH k a b\nCOPY k l", "L l DB l BASE \"\" 2 COPY k DB", false},
	{"", "RPUSH k a b\nMOVE k 5", "L l 5 k BASE \"\" 2 COPY k DB\nD l DB k", false},
	{"", "RPUSH k a b\nRENAME k l", "L l DB l BASE \"\" 2 COPY k DB\nD l DB k", false},
	{"", "RPUSH k a b\nCOPY k l\nLPOP l", "L l DB l BASE \"\" 1 LPOP", false},

	{"RPUSH l a", "BLPOP k l 0", "D l DB l", false},
	{"", "RPUSH l a b\nBRPOP k l 0", "L l DB l BASE \"\" 1 RPOP", false},
	{"", "RPUSH l a b\nBLPOP k l 0", "L l DB l BASE \"\" 1 LPOP", false},
	{"SET k v", "BLPOP k l 0", "", false},
	{"", "BLPOP k l x", "", false},
	{"", "BLPOP k", "", false},
	{"", "BLPOP k -1", "", false},
	{"RPUSH k a", "BLMOVE k l LEFT LEFT 0", "D l DB k\nR l DB l DUMP \"\"", false},
	{"", "RPUSH k a b\nRPUSH l x\nBLMOVE k l LEFT LEFT 0", "L l DB k BASE \"\" 1 LPOP\nL l DB l BASE \"\" 2 LPUSH a", false},
	{"", "BLMOVE k l LEFT UP -1", "", false},
	{"", "BLMOVE k l LEFT LEFT", "", false},
	{"RPUSH k a", "BRPOPLPUSH k l 0", "D l DB k\nR l DB l DUMP \"\"", false},
	{"RPUSH k a", "BRPOPLPUSH k l x", "", false},
	{"RPUSH k a b", "BLMPOP 0 1 k RIGHT COUNT 2", "D l DB k", false},
	{"", "RPUSH k a b c\nBLMPOP 0 1 k RIGHT COUNT 2", "L l DB k BASE \"\" 1 RPOP 2", false},
	{"", "BLMPOP x 1 k RIGHT COUNT 2", "", false},
	{"ZADD l 1.5 a", "BZPOPMIN k l 0", "z l DB l \"\" a", false},
	{"ZADD l 1.5 a 2 b", "BZPOPMAX k l 0", "z l DB l \"\" b", false},
	{"ZADD l 1.5 a 2 b", "BZMPOP 0 2 k l MAX", "z l DB l \"\" b", false},
	{"SET k v", "BZPOPMIN k l 0", "", false},

	{"", "GEOADD k 13.361389 38.115556 a 15.087269 37.502669 b", `Z l DB k "" 3479099956230698 a 3479447370796909 b`, false},
	{"GEOADD k 13.361389 38.115556 a", "GEOADD k NX 1 1 a 15.087269 37.502669 b", `Z l DB k "" 3479447370796909 b`, false},
	{"GEOADD k 13.361389 38.115556 a", "GEOADD k XX CH 1 1 a 15 37 b", `Z l DB k "" 3377822707026402 a`, false},
	{"", "GEOADD k 200 38 a", "", false},
	{"", "GEOADD k 1 38", "", false},
	{"GEOADD k 13.361389 38.115556 a", "GEORADIUS k 15 37 200 km STORE m", "D l DB m\nZ l DB m \"\" 3479099956230698 a", false},
	{"GEOADD k 13.361389 38.115556 a", "GEORADIUS k 15 37 1 km STORE m", "", false},
	{"GEOADD k 13.361389 38.115556 a\nSET m x", "GEORADIUSBYMEMBER k a 1 km COUNT 1 STOREDIST m", "D l DB m\nZ l DB m \"\" 0 a", false},
	{"GEOADD k 13.361389 38.115556 a", "GEOSEARCHSTORE m k FROMLONLAT 15 37 BYRADIUS 200 km", "D l DB m\nZ l DB m \"\" 3479099956230698 a", false},
	{"GEOADD k 13.361389 38.115556 a", "GEOSEARCHSTORE m k FROMLONLAT 15 37 BYRADIUS 200 miles", "", false},

	{"", "SETBIT k 1 1", `R l DB k DUMP ""`, false},
	{"SET k @", "SETBIT k 1 1", "", false},
	{"", "SETBIT k 7 0", `R l DB k DUMP ""`, false},
	{"", "SETBIT k 7 2", "", false},
	{"SET k @", "BITFIELD k GET u8 0", "", false},
	{"SET k @", "BITFIELD k SET u8 0 65 INCRBY u8 0 1", `R l DB k DUMP ""`, false},
	{"SET k @", "BITFIELD k OVERFLOW FAIL INCRBY u8 0 255", "", false},
	{"", "BITFIELD k OVERFLOW FAIL INCRBY u8 0 256", `R l DB k DUMP ""`, false},
	{"", "BITFIELD k SET u99 0 1", "", false},
	{
		"SET k @", "BITFIELD k SET i64 0 9223372036854775807 GET u63 1 INCRBY i64 0 1 SET i60 #1 -1152921504606846975 GET i60 #1 GET u8 0",
		`R l DB k DUMP ""`, false,
	},
	{"", "BITFIELD k SET u63 3 9007199254740993 OVERFLOW FAIL INCRBY u63 3 9223372036854775806 OVERFLOW SAT INCRBY u63 3 9223372036854775806", `R l DB k DUMP ""`, false},
	{"SET k aaaaaaaaaaaaaaaa", "BITFIELD k GET i64 5 GET u62 7", "", false},
	{"SET k a\nSET l b", "BITOP OR m k l", `S l DB m c ""`, false},
	{"SET m a", "BITOP AND m k l", "D l DB m", false},
	{"", "BITOP AND m k l", "", false},
	{"", "BITOP NOT m k l", "", false},
	{"", "SETBIT k 1 1\nSETBIT k 2 1", `L l DB k BASE "" 1 SETBIT 2 1`, false},
	{"", "APPEND k a\nAPPEND k bc", `L l DB k BASE "" 3 APPEND bc`, false},
	{"", "SETRANGE k 1 a\nSETRANGE k 0 b", `L l DB k BASE "" 2 SETRANGE 0 b`, false},
	{"", "APPEND k @\nBITFIELD k GET u8 0 OVERFLOW SAT INCRBY u8 0 300", `L l DB k BASE "" 1 BITFIELD GET u8 0 OVERFLOW SAT INCRBY u8 0 300`, false},
	{"", "APPEND k a\nRENAME k l\nAPPEND l b", `L l DB l BASE "" 2 APPEND b`, false},
	{"", "APPEND k a\nSET k a\nAPPEND k b", `R l DB k DUMP ""`, false},
	{"", "PFADD k a\nPFADD k b", `L l DB k BASE "" * PFADD b`, false},
	{"", "PFADD k a", `R l DB k DUMP ""`, false},
	{"PFADD k a", "PFADD k a", "", false},
	{"SET k a", "PFADD k a", "", false},
	{"PFADD l a", "PFMERGE k l", `R l DB k DUMP ""`, false},

	{"", "XADD k 5-1 f v", "R l DB k DUMP \"\"", false},
	{"", "XADD k * f v", "R l DB k DUMP \"\"", true},
	{"", "XADD k NOMKSTREAM * f v", "", false},
	{"", "XADD k 5-1 f", "", false},
	{"", "XADD k 5-1 f v\nXADD k 6-1 f v g w", "L l DB k BASE \"\" 2 XADD 6-1 f v g w", false},
	{"", "XADD k 5-1 f v\nXADD k NOMKSTREAM MAXLEN 5 6-1 f v", "L l DB k BASE \"\" 2 XADD 6-1 f v", false},
	{"", "XADD k 5-1 f v\nXADD k * f v", "L l DB k BASE \"\" 2 XADD * f v", true},
	{"", "XADD k 5-1 f v\nXADD k 6-* f v", "L l DB k BASE \"\" 2 XADD 6-0 f v", false},
	{"", "XADD k 5-1 f v\nXADD k 6-1 f v\nXADD k MAXLEN 2 7-1 f v", "L l DB k BASE \"\" 2 XADD MINID = 6-1 7-1 f v", false},
	{"", "XADD k 5-1 f v\nXADD k 6-1 f v\nXADD k maxlen ~ 1 limit 9 7-1 f v", "L l DB k BASE \"\" 3 XADD 7-1 f v", false},
	{"", "XADD k 5-1 f v\nXADD k MAXLEN = 0 7-1 f v", "L l DB k BASE \"\" 0 XADD MAXLEN = 0 7-1 f v", false},
	{"", "XADD k 5-1 f v\nXADD k MINID 6 7-1 maxlen v", "L l DB k BASE \"\" 1 XADD MINID = 7-1 7-1 maxlen v", false},
	{"XADD k 5-1 f v\nPEXPIREAT k " + far, "XSETID k 6-1\nXADD k 7-1 f v", "L l DB k BASE " + far + " 2 XADD 7-1 f v", false},
	{"XADD k 5-1 f v\nXADD k 6-1 f v", "XDEL k 5-1", "R l DB k DUMP \"\"", false},
	{"", "XADD k 5-1 f v\nXADD k 6-1 f v\nXDEL k 5-1 7-1", "L l DB k BASE \"\" 1 XDEL 5-1 7-1", false},
	{"", "XADD k 5-1 f v\nXDEL k 5-1", "L l DB k BASE \"\" 0 XDEL 5-1", false},
	{"", "XADD k 5-1 f v\nXDEL k 5-1\nXADD k 6-1 f v", "L l DB k BASE \"\" 1 XADD 6-1 f v", false},
	{"XADD k 5-1 f v", "XDEL k 5-2", "", false},
	{"", "XADD k 5-1 f v\nXADD k 6-1 f v\nXTRIM k MAXLEN 1", "L l DB k BASE \"\" 1 XTRIM MINID = 6-1", false},
	{"", "XADD k 5-1 f v\nXADD k 6-1 f v\nXTRIM k MAXLEN 0", "L l DB k BASE \"\" 0 XTRIM MAXLEN = 0", false},
	{"XADD k 5-1 f v", "XTRIM k MAXLEN 1", "", false},
	{"XADD k 5-1 f v", "XSETID k 9-1", "R l DB k DUMP \"\"", false},
	{"", "XADD k 5-1 f v\nXSETID k 9-1", "L l DB k BASE \"\" 1 XSETID 9-1", false},
	{"", "XSETID k 9-1", "", false},

	{"", "PUBLISH c hello", "P n DB c hello", false},
}

// words splits a line at spaces; "" is an empty word.
func words(line string) []string {
	list := strings.Split(line, " ")
	for i := range list {
		if list[i] == `""` {
			list[i] = ""
		}
	}
	return list
}

func commands(text string) [][]string {
	if text == "" {
		return nil
	}
	var all [][]string
	for line := range strings.SplitSeq(text, "\n") {
		all = append(all, words(line))
	}
	return all
}

var (
	now  = regexp.MustCompile(`^1[0-9]{12}$`)
	base = regexp.MustCompile(`^1[0-9]{12}-[0-9]+@a$`)
)

// matches compares an effect with one of a row.
func matches(e effect, want []string, db int) bool {
	if len(e) != len(want) {
		return false
	}
	for i, w := range want {
		switch {
		case w == "*", w == "DUMP" && e[0] == "R", w == "MS" && now.MatchString(e[i]), w == "BASE" && base.MatchString(e[i]), w == "DB" && e[i] == strconv.Itoa(db):
		case w != e[i]:
			return false
		}
	}
	return true
}

// rig is three servers: bare Redis, one with the library, and one that gets the effects.
type rig struct {
	bare, sonic, copied *stack.RedisServer
	b, s, c             *redis.Conn
}

func newRig(ctx context.Context, t *testing.T, policies ...string) *rig {
	t.Helper()
	r := &rig{bare: stack.PrivateRedis(t), sonic: stack.PrivateRedis(t), copied: stack.PrivateRedis(t)}
	r.b, r.s, r.c = r.bare.Client(t).Conn(), r.sonic.Client(t).Conn(), r.copied.Client(t).Conn()
	t.Cleanup(func() {
		for _, c := range []*redis.Conn{r.b, r.s, r.c} {
			_ = c.Close()
		}
	})
	open(ctx, t, r.s, []string{"b"}, policies...)
	return r
}

func (r *rig) clear(ctx context.Context, t *testing.T, policies ...string) {
	t.Helper()
	for _, c := range []*redis.Conn{r.b, r.s, r.c} {
		if err := c.FlushAll(ctx).Err(); err != nil {
			t.Fatal(err)
		}
	}
	open(ctx, t, r.s, []string{"b"}, policies...)
}

// Every row gives the reply of bare Redis, in both protocols, its effects, and these make the same
// of the state before.
func TestRows(t *testing.T) {
	t.Parallel()
	for _, resp := range []int{2, 3} {
		t.Run("RESP"+strconv.Itoa(resp), func(t *testing.T) {
			t.Parallel()
			testRows(t, resp, map[int]int{2: 0, 3: 3}[resp])
		})
	}
}

func testRows(t *testing.T, resp, db int) {
	t.Helper()
	ctx := t.Context()
	r := newRig(ctx, t, "lww")
	bare, sonic, copied := dial(t, r.bare, resp), dial(t, r.sonic, resp), dial(t, r.copied, resp)
	sonicDB := dial(t, r.sonic, resp) // the functions' connection stays in database 0
	for _, w := range []*rawConn{bare, copied, sonicDB} {
		w.do("SELECT", strconv.Itoa(db))
	}
	for _, row := range rows {
		t.Run(strings.ReplaceAll(row.before, "\n", ";")+">"+strings.ReplaceAll(row.command, "\n", ";"), func(t *testing.T) {
			r.clear(ctx, t, "lww")
			for _, command := range commands(row.before) {
				for _, w := range []*rawConn{bare, sonicDB, copied} {
					if reply := w.do(command...); reply[0] == '-' {
						t.Fatal(command, reply)
					}
				}
			}
			list := commands(row.command)
			command, first := list[len(list)-1], list[:len(list)-1]
			for _, command := range first {
				bare.do(command...)
				if reply := sonic.do(function(callMode{DB: db, RESP3: resp == 3}, command)...); reply[0] == '-' {
					t.Fatal(command, reply)
				}
			}
			for _, all := range entries(ctx, t, r.s) {
				for _, e := range all {
					if err := replay(ctx, r.c, e); err != nil {
						t.Fatal(err)
					}
				}
			}
			want := bare.do(command...)
			got := translated(command, resp, sonic.do(function(callMode{DB: db, RESP3: resp == 3}, command)...))
			if got != want && !row.any || got[0] != want[0] {
				t.Errorf("the reply is %q, bare Redis' is %q", got, want)
			}
			if !row.any {
				if b, s := holdings(ctx, t, r.b, false), holdings(ctx, t, r.s, false); !slices.Equal(b, s) {
					t.Errorf("Redis holds\n%q, bare Redis\n%q", s, b)
				}
			}
			r.checkEffects(ctx, t, row, db)
		})
	}
}

func (r *rig) checkEffects(ctx context.Context, t *testing.T, row row, db int) {
	t.Helper()
	all := entries(ctx, t, r.s)
	want := commands(row.effects)
	if len(want) == 0 {
		if len(all) != 0 {
			t.Errorf("effects of a command that changed nothing: %q", all)
		}
		return
	}
	if len(all) != 1 || len(all[0]) != len(want) {
		t.Fatalf("effects are %q, want %q", all, want)
	}
	for i, e := range all[0] {
		if !matches(e, want[i], db) {
			t.Errorf("effect is %q, want %q", e, want[i])
		}
		if err := replay(ctx, r.c, e); err != nil {
			t.Error(err)
		}
	}
	if s, c := holdings(ctx, t, r.s, true), holdings(ctx, t, r.c, true); !slices.Equal(s, c) {
		t.Errorf("the effects make\n%q of what became\n%q", c, s)
	}
}
