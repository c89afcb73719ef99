
-- How the effects of all zones become one state
--
-- The state of a key under lww is a function of the set of effects that were applied to it, whatever the order of
-- their arrival. For that, every fact that is kept is the newest of its kind, or the greatest: such facts do not
-- depend on order.
--
--   KV    version of the last wholesale write (S, R, D): what came before it is gone
--   t[T]  version of the newest addition of elements of type T (hash, set, sorted set)
--   e[x]  version of the newest addition or removal of element x, of whatever type
--   X     version of the newest statement about the expiry (E, S, R, H behind D), and what it says
--   W     time before which an expiry, of E or of a wholesale write, removed everything, as a writer of E saw
--
-- The content follows from them:
--
--   * The type is the T of the newest t[T] that is not before KV; without one the content is that of the wholesale
--     write. An addition of another type wiped what was before it: elements whose version is before t of another type
--     are gone, as those before KV are.
--   * Element x is there when e[x] is an addition that is not gone. A removal is one of whatever type. Two effects of
--     one entry have the same version, the later one counts.
--   * An expiry at p, once the time is p, wipes what is of a time before p, and what is not newer than the statement.
--     What is written later starts anew, without expiry.
--
-- The clock of a stream may be ahead of Redis' own. Then Redis holds a key up to its expiry p, while the next version
-- is of p or later: the key is over. Clients of its zone see it for that moment; in all other zones it is gone, or
-- never was. So all that Redis still holds in it is dead:
--
--   * An addition whose pxat is not behind its own time is dead.
--   * No E says an expiry that is over by its own version: its origin ships D in its place. So the time of a
--     statement by E is behind its version, and W, a time, says all that an expiry wiped. (A wholesale write can be
--     over by its own version. Nothing before it is left.)
--   * A local command that changes the expiry of a key that is over has it live on. Nobody else has it any more, so
--     its origin ships the whole. When a local command empties such a key, W of its E is p.
--   * Before an effect of another zone is applied to a key that is over, the key is removed.
--
-- This state is what Redis holds, always: each effect is resolved as it arrives. One thing can be in the way. Redis
-- forgets what has expired; when a newer statement about the expiry arrives later, what was forgotten may be alive.
-- Then this zone cannot know the state, knows that it cannot, and asks the origin of the statement (effect N), which
-- answers with D and the state it has, under a new version. That is a wholesale write like any other, so all zones
-- have the same again. The cases:
--
--   * E or a wholesale write that replaces an expiry whose time has passed here, unless E's W says that its writer
--     had seen it pass, too;
--   * E on a key that is missing here;
--   * E without W, while this Redis has come back older than it was and has not got all again: its writer may have
--     pruned the expiry that it had seen pass, for this zone knew of it, too, then;
--   * an addition whose pxat is still to come by its own version, when nothing is known here of an expiry: the
--     statement comes later from a third zone, or it was made before any version was stored. Until the answer comes the
--     key does not expire here: what a newer statement would have live on is not forgotten;
--   * a key that a remote effect left empty while its expiry is still to come: Redis forgets the expiry with the key.
--     (When a local command does it, it appends E.)
--
-- What was forgotten before N was sent is older than N, and the answer is newer. So a wholesale write of the zone
-- that was asked is an answer only when it is newer than N. And when a zone would ask again before it has the answer,
-- it does so, unless all additions and wholesale writes of the key that it knows are older than N.
--
-- Strings, lists and streams: L is a wholesale write whose content is an operation on the content of another
-- wholesale write, the base, which it names. Its version, its expiry and its place among the facts are those of any
-- wholesale write. The operation is executed when the key here holds what the base made; every zone that executes it
-- has the same then. "Holds what KV made" is itself a fact: ' L' behind KV says so, and it is written with that
-- content only: by R, by a write of this zone that appends R or L, and by L that was executed. Nothing else changes
-- such a content, but what takes it away: an expiry, or an addition of another type. Then the key is missing, or of
-- another type, and the operation is not executed. The base of COPY is the write that made the key which is copied. A
-- string that S made has no mark: most strings are never changed in place, and a mark is kept as long as its key.
--
-- A wholesale write that cannot be reproduced here is asked for, as above: L on another base, for two zones wrote at
-- the same time, or this one has forgotten something. KV becomes its version, without ' L', so what goes on from it
-- is not executed either. The key keeps what it holds until the answer comes. A write of this zone in between ships
-- the whole, for it has no base; it is newer, and stays. L that is lost to a newer KV, to a newer addition of another
-- type, or to an expiry needs no content, and nothing is asked for. So when all has arrived KV is the same in all
-- zones, and each of them holds what KV made: else it has asked, and the answer is a newer KV.
--
-- A flush of a database (F) is a deletion of all keys that it has in any zone: KV of each is at least its version.
-- Who applies it applies that deletion to the keys of which something newer is known, and removes all others. Facts
-- of the time before it stay until they are pruned, and lose every comparison. The version of the newest flush of a
-- database is never forgotten, for an expiry that it has overtaken may be pruned later than it; like any KV it counts
-- as forgotten once it is before `pruned`.
--
-- "The time" is the clock of this zone's stream or Redis' wall clock, whichever is ahead. Local writes are newer than
-- everything here, so they only store their facts.
--
-- Pruning: `pruned` is a version that every zone's cursors are past, as all beats say, so everything still to come is
-- newer and was written by who knew all before it. A fact before it is forgotten: it would lose every comparison.
-- What is asked for later counts as forgotten at once, also when sonic_prune has not reached it yet. X is kept until
-- its time is before `pruned`, too; W counts as forgotten then. An element without a version has its key's KV, and
-- without that one is older than all that is known. A KV takes an older X with it. A KV with ' L' is kept as long as
-- there is the string, list or stream, as what operations name; it counts as forgotten for all else.
--
-- Versions are compared by milliseconds, sequence number, zone. Numbers are exact: milliseconds stay below 2^43 and
-- sequence numbers below 2^20 (append and sonic_open see to it). Zones are compared byte by byte: Lua's comparison of
-- strings would go by the locale.

-- parse reads a version: id, @zone unless it is this one. It returns what stands behind it, too.
function version.parse(text)
	local ms, seq, origin, rest = string.match(text, '^(%d+)%-(%d+)@?([^ ]*)(.*)$')
	if origin == '' then origin = c.zone end
	return {ms = tonumber(ms), seq = tonumber(seq), zone = origin, text = string.sub(text, 1, #text - #rest)}, rest
end

-- of returns the version of an entry of origin.
function version.of(id, origin)
	local ms, seq = numbers_of(id)
	return {
		ms = ms, seq = seq, zone = origin, text = origin == c.zone and id or id .. '@' .. origin,
	}
end

-- before tells whether a is an older version than b.
local function before(a, b)
	if a.ms ~= b.ms then return a.ms < b.ms end
	if a.seq ~= b.seq then return a.seq < b.seq end
	for i = 1, math.min(#a.zone, #b.zone) do
		local x, y = string.byte(a.zone, i), string.byte(b.zone, i)
		if x ~= y then return x < y end
	end
	return #a.zone < #b.zone
end

local function same(a, b) return a.ms == b.ms and a.seq == b.seq and a.zone == b.zone end

-- newer returns the newer of two versions; each may be nil.
local function newer(a, b)
	if not a or b and before(a, b) then return b end
	return a
end

-- known parses a stored version, nil when it is pruned.
function version.known(text)
	if not text then return nil end
	local v, rest = version.parse(text)
	if before(v, c.pruned) then return nil end
	return v, rest
end

-- expiry_known parses a stored expiry: its version, its time as text ('' for never), W; nil when it is pruned.
function version.expiry_known(text)
	if not text then return nil end
	local v, rest = version.parse(text)
	local pxat, cleared = string.match(rest, '^ ?(%d*) ?(%d*)$')
	if before(v, c.pruned) and (pxat == '' or tonumber(pxat) <= c.pruned.ms) then return nil end
	return v, pxat, tonumber(cleared)
end

-- full returns a version with its zone, as effects name it.
function version.full(v) return v.zone == c.zone and v.text .. '@' .. c.zone or v.text end

-- base returns the version of a stored wholesale write, with its zone, when operations may go on from it: nil when
-- the key does not hold what that write made.
function version.base(stored)
	if not stored or string.sub(stored, -2) ~= ' L' then return nil end
	local text = string.match(stored, '^[^ ]*')
	return string.find(text, '@', 1, true) and text or text .. '@' .. c.zone
end

-- overtaken tells whether a stored expiry is older than the stored wholesale write of its key. It has no meaning
-- any more, also once that write is pruned.
function version.overtaken(expiry, whole)
	return whole and before(version.parse(expiry), version.parse(whole))
end

-- flushed returns the version of the newest flush of a database, nil when there is none. In a cluster, where each slot
-- has its own, shards.use forgets it. The script is in db 0.
function version.flushed(ver, db)
	local v = c.flushes[db]
	if v == nil then
		local stored = call('HGET', ver, flush_field(db))
		v = stored and version.parse(stored) or false
		c.flushes[db] = v
	end
	return v or nil
end

-- whole returns the newest wholesale write of a key, as it is stored: stored, what its own field says, or the flush
-- of its database. The script is in db 0.
function version.whole(ver, db, stored)
	local flushed = version.flushed(ver, db)
	if flushed and not (stored and before(flushed, version.parse(stored))) then return flushed.text end
	return stored
end

-- named returns the database and the key that a field of the hash of versions names, or one of the hash `dropped`; nil
-- for other fields.
function version.named(field)
	local db, key = string.match(field, '^[kx](%d+):(.*)$')
	if db then return db, key end
	db, key = string.match(field, '^t%a(%d+):(.*)$')
	if db then return db, key end
	local size
	db, size, key = string.match(field, '^e(%d+):(%d+):(.*)$')
	if db then return db, string.sub(key, 1, tonumber(size)) end
end

-- facts reads what is known of a key, without its elements. The script is in db 0.
function version.facts(ver, db, key)
	local name = db .. ':' .. key
	local stored = call('HMGET', ver, 'k' .. name, 'x' .. name, 'th' .. name, 'ts' .. name, 'tz' .. name)
	local f = {types = {}, said = ''}
	local whole, rest = version.whole(ver, db, stored[1]), nil
	if whole then
		f.whole, rest = version.known(whole)
		if f.whole then f.whole_said = string.match(rest, '^ ?(%d*)') end
		f.stored = whole
	end
	if stored[2] and not version.overtaken(stored[2], whole) then
		f.expiry, f.said, f.cleared = version.expiry_known(stored[2])
	end
	if stored[3] then f.types.h = version.known(stored[3]) end
	if stored[4] then f.types.s = version.known(stored[4]) end
	if stored[5] then f.types.z = version.known(stored[5]) end
	return f
end

-- expiry returns the newest statement about the expiry: its version and its time, nil for never; nothing
-- when there is no statement.
function version.expiry(f)
	if f.expiry and not (f.whole and before(f.expiry, f.whole)) then return f.expiry, tonumber(f.said), f.said end
	if f.whole then return f.whole, tonumber(f.whole_said), f.whole_said end
end

-- newest_type returns the version of the newest addition of any type but except.
function version.newest_type(f, except)
	local newest
	if except ~= 'h' then newest = f.types.h end
	if except ~= 's' then newest = newer(newest, f.types.s) end
	if except ~= 'z' then newest = newer(newest, f.types.z) end
	return newest
end
