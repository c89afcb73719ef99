
-- Fields of the hash of versions. Their values are `id`, `@zone` unless the zone is this one, and,
-- after a space, what belongs to the kind of field.
local function key_field(db, key) return 'k' .. db .. ':' .. key end -- last wholesale write or deletion
local function type_field(db, key, letter) return 't' .. letter .. db .. ':' .. key end -- newest addition: h, s, z
local function expiry_field(db, key) return 'x' .. db .. ':' .. key end -- newest expiry; pxat, or nothing; W
local function element_field(db, key, element) -- newest write of an element; '-' when it was removed
	return 'e' .. db .. ':' .. DIGITS[#key] .. ':' .. key .. element
end

local function flush_field(db) return 'f' .. db end -- newest flush of a database

-- Functions on versions, see 50_versions.lua.
local version = {}

-- Functions on requests, see 57_requests.lua.
local requests = {}

-- What an entry of the stream holds at most. The effects of a larger write are in several entries, one behind the
-- other: `p` in all but the last. So who reads some entries knows what they take at most, and no write meets Redis'
-- bound of an entry, 1 GiB.
local PIECE = 65536

-- numbers_of returns the time and the sequence number of an id.
local function numbers_of(id)
	local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
	return tonumber(ms), tonumber(seq)
end

local function ms_of(id) return tonumber(string.match(id, '^%d+')) end

local function wall_clock()
	local now = call('TIME')
	return tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
end

-- next_id returns the id of an entry that cannot have the next one. The pieces of a large entry have ids of their
-- own: as many sequence numbers are left out before it. They also are the positions of its messages, for it goes in
-- several. Sequence numbers stay below 2^20, so that an id fits into a position; that many in one millisecond happen
-- when this Redis' clock is behind.
local function next_id(size)
	local ms, seq = numbers_of(shards.latest())
	local wall = math.max(wall_clock(), c.watermark)
	if wall > ms then ms, seq = wall, 0 end
	seq = seq + math.floor(size / PIECE) + 1
	if seq >= 1048576 then ms, seq = ms + 1, math.floor(size / PIECE) + 1 end
	return format('%d-%d', ms, seq)
end

-- id_before tells whether id a is before id b.
local function id_before(a, b)
	if a == b then return false end
	local ams, aseq = numbers_of(a)
	local bms, bseq = numbers_of(b)
	if ams ~= bms then return ams < bms end
	return aseq < bseq
end

local dropped = {} -- functions on effects that do not go to the stream, see 12_dropped.lua

-- raise_watermark says that others know that they have all entries before ms. They write that as the id <ms>-0, up to
-- which they take all entries as applied: so no new entry has that one either.
function shards.raise_watermark(ms)
	if ms > c.watermark then
		c.watermark, c.watermark_text, c.least_id = ms, format('%d', ms), format('%d-1', ms)
	end
end

-- What streams hold, in bytes. Of what a stream held when it was counted first, old bytes in old_count entries are
-- left; added entries came behind them. Each of list[first..last] is an id and the bytes of the added entries up to it
-- that no earlier one counts; rest is what those take that were added behind the first `marked` ones. since is, in a
-- Redis Cluster, the time of the first entry.
local backlog = {}

-- first_ms returns the time of the first entry of a stream, nil if it has none.
function backlog.first_ms(out)
	local first = call('XRANGE', out, '-', '+', 'COUNT', '1')[1]
	return first and ms_of(first[1])
end

-- start counts a stream that holds bytes in count entries.
function backlog.start(out, bytes, count, since)
	local stream = {first = 1, last = 0, rest = 0, old = bytes, old_count = count, added = 0, marked = 0, since = since}
	c.streams[out], c.bytes = stream, c.bytes + bytes
	return stream
end

-- What an entry takes besides its effects, about.
local ENTRY_OVERHEAD = 64

-- trim says that the stream has no entries up to id any more, and count others.
function backlog.trim(out, id, count)
	local stream = c.streams[out]
	if count == 0 then c.streams[out], c.unread[out] = nil, nil end
	if not stream then return end
	if count > 0 and c.clustered then stream.since = backlog.first_ms(out) end
	-- Without marks between them, entries have the same size, as far as is known.
	local left = math.max(0, count - stream.added)
	if left < stream.old_count then
		local freed = math.floor(stream.old * (1 - left / stream.old_count))
		c.bytes, stream.old, stream.old_count = c.bytes - freed, stream.old - freed, left
	end
	while stream.first <= stream.last and (count == 0 or not id_before(id, stream[stream.first][1])) do
		c.bytes = c.bytes - stream[stream.first][2]
		stream[stream.first], stream.first = nil, stream.first + 1
	end
	local unmarked = stream.added - stream.marked
	if stream.first > stream.last and count < unmarked then
		local freed = math.floor(stream.rest * (1 - count / unmarked))
		c.bytes, stream.rest, stream.marked = c.bytes - freed, stream.rest - freed, stream.added - count
	end
end

-- limit sets the bound of all streams together, '' or nil for none.
function backlog.limit(bound, drops) c.bound, c.drops = tonumber(bound or '') or 1 / 0, drops end

local FULL = {err = 'OOM the outbox is full: Pulsar has not stored earlier writes yet'}

-- refuse_or_drop returns the error of a write for which the outbox has no room, nil when it has. With drops it
-- returns nil, and effects are dropped from now on. A transaction of which an earlier write was executed goes on up
-- to twice the bound, but for what copies keys: its command is small, and its effect may be large.
local function refuse_or_drop(copies)
	if c.bytes <= c.bound or c.alone then return nil end
	local begun = c.tx and c.tx == c.open_tx
	if begun and not copies and c.bytes <= 2 * c.bound then return nil end
	if begun or not c.drops then return FULL end
	c.dropping = true
end

-- store_versions stores versions, which are those of an entry with that id. The script is in db 0.
local function store_versions(out, id, versions)
	for i = 2, #versions, 2 do versions[i] = id .. versions[i] end
	sliced('HSET', VERSION_HASH[out], versions, 1, #versions)
end

-- add_to_stream adds an entry to the stream, and counts it. It returns the entry's id.
local function add_to_stream(out, id, tx, effects)
	local last, pieces, n = effects, 1, #effects + ENTRY_OVERHEAD
	if #effects > PIECE then
		pieces = math.ceil(#effects / PIECE)
		local ms, seq = numbers_of(id)
		for i = 1, pieces - 1 do
			local piece = string.sub(effects, (i - 1) * PIECE + 1, i * PIECE)
			call('XADD', out, format('%d-%d', ms, seq - pieces + i), 'p', piece)
		end
		last = string.sub(effects, (pieces - 1) * PIECE + 1)
	end
	if tx then
		id = call('XADD', out, id, 'e', last, 't', tx)
	else
		id = call('XADD', out, id, 'e', last)
	end
	local stream = c.streams[out] or backlog.start(out, 0, 0, math.max(ms_of(id), c.watermark))
	local rest = stream.rest + n
	c.bytes, stream.added = c.bytes + n, stream.added + pieces
	if rest >= PIECE then
		stream.last = stream.last + 1
		stream[stream.last] = {id, rest}
		rest, stream.marked = 0, stream.added
	end
	stream.rest = rest
	if c.clustered then c.unread[out] = true end
	return id
end

-- append adds one entry to the outbox: effects, which are packed arrays, one behind the other. It returns the entry's
-- id, which is the version of all of them. versions is a list of field, rest, field, rest, .. of the hash of versions:
-- each field becomes id .. rest. kept says that the entry goes to the stream, whatever becomes of others.
--
-- State keys are in db 0: a script that works in another db goes there and back.
local function append(out, db, tx, effects, versions, kept)
	if c.dropping and not kept then return dropped.add(out, db, effects, versions) end
	if db ~= '0' then call('SELECT', '0') end
	local id, last_id = '*', c.last_id
	if #effects > PIECE then
		id = next_id(#effects)
	elseif last_id and #last_id > 20 then -- sequence numbers of six digits
		id = next_id(0)
	end
	id = add_to_stream(out, id, tx, effects)
	if c.watermark > 0 and id < c.least_id then -- also when Redis' clock was set back
		call('XDEL', out, id)
		c.last_id = id
		id = add_to_stream(out, next_id(0), tx, effects)
	end
	if tx then c.open_tx = tx end
	c.last_id = id
	if #id > 20 and c.clustered then -- the next function does not know
		c.last_id = format('%d-0', ms_of(id) + 1)
		call('XSETID', out, c.last_id)
	end
	if versions then
		if #versions == 2 then
			call('HSET', VERSION_HASH[out], versions[1], id .. versions[2])
		else
			store_versions(out, id, versions)
		end
	end
	if db ~= '0' then call('SELECT', db) end
	return id
end

-- Each of the following returns what a write under lww stores of versions, nil under another policy.

-- wholesale_versions are those of a key set or deleted as a whole. They are added to versions, if given. Who
-- makes a collection with an expiry adds expiry_versions: they are kept longer, see 50_versions.lua. base says
-- that the effect is R or L: operations may go on from it.
local function wholesale_versions(policy, db, key, pxat, versions, base)
	if policy ~= 'l' then return versions end
	local rest = pxat == '' and '' or ' ' .. pxat
	if base then rest = rest .. ' L' end
	if not versions then return {key_field(db, key), rest} end -- made of its size: most writes end here
	local n = #versions
	versions[n + 1], versions[n + 2] = key_field(db, key), rest
	return versions
end

-- expiry_text is what stands behind the version of a statement about an expiry.
local function expiry_text(pxat, cleared)
	if cleared then return ' ' .. pxat .. ' ' .. cleared end
	return pxat == '' and '' or ' ' .. pxat
end

-- expiry_versions are those of a change of a key's expiry; pxat is '' when the key keeps forever. cleared is what
-- cleared_before returned.
local function expiry_versions(policy, db, key, pxat, versions, cleared)
	if policy ~= 'l' then return versions end
	versions = versions or {}
	local n = #versions
	versions[n + 1], versions[n + 2] = expiry_field(db, key), expiry_text(pxat, cleared)
	return versions
end

shards.MOVING = {err = 'TRYAGAIN the slot is moving to another primary'}

shards.RECOVERING = {err = 'TRYAGAIN the slot may lack effects'}

-- use makes out the outbox of the function that runs. In a cluster it returns the error of a slot that is moving:
-- other keys of it may be at the other primary already. A key that does not exist cannot be read then. Where the slot
-- moves to, a command on two keys fails if one does not exist, even after ASKING. Unless recovers, it also returns
-- the error of a slot that may lack effects, see sonic_mark_recovery.
function shards.use(out, recovers)
	c.outbox = out
	if not c.clustered then return nil end
	c.last_id, c.flushes['0'] = nil, nil
	local found = try('EXISTS', state(out, 'none'), state(out, 'recovery'))
	if found == 0 then return nil end
	if failed(found) then return shards.MOVING end
	if not recovers then return shards.RECOVERING end
end

-- is_over tells whether pxat, an expiry as text, has come by the time that the next version will have: that of the
-- stream or of Redis, whichever is ahead. A stream of many entries in one millisecond may go on in the next one, see
-- append.
local function is_over(pxat)
	if not pxat or pxat == '' then return false end
	local ms = math.max(ms_of(shards.latest()), c.watermark)
	if #c.last_id > 20 then ms = ms + 1 end
	return tonumber(pxat) <= ms or tonumber(pxat) <= wall_clock()
end

-- cleared_before returns the time before which everything in the key was wiped by an expiry, as text, nil when there
-- was none. It is called before the key's expiry changes: who applies the change might not have seen that expiry
-- pass, or might take the key for one whose expiry is lifted, which it no longer has.
local function cleared_before(policy, db, key)
	if policy ~= 'l' or c.alone then return nil end
	if db ~= '0' then call('SELECT', '0') end
	local ver = VERSION_HASH[c.outbox]
	local stored = call('HMGET', ver, expiry_field(db, key), key_field(db, key))
	local whole = version.whole(ver, db, stored[2])
	if db ~= '0' then call('SELECT', db) end
	local pxat, cleared
	if stored[1] and not version.overtaken(stored[1], whole) then
		pxat, cleared = string.match(stored[1], '^[^ ]* ?(%d*) ?(%d*)$')
		if cleared == '' then cleared = nil end
	elseif whole then -- the newest statement is that of the wholesale write
		pxat = string.match(whole, '^[^ ]* ?(%d*)')
	end
	if is_over(pxat) and call('PEXPIRETIME', key) == -1 then return pxat end
	return cleared
end

-- added_versions are those of elements list[first], list[first+step], .. of a key of type kind.
local function added_versions(policy, db, key, kind, list, first, last, step, versions)
	if policy ~= 'l' then return versions end
	if not versions and first + step > last then
		return {type_field(db, key, kind), '', element_field(db, key, list[first]), ''}
	end
	versions = versions or {}
	local n, prefix = #versions, element_field(db, key, '')
	versions[n + 1], versions[n + 2] = type_field(db, key, kind), ''
	n = n + 2
	for i = first, last, step do
		versions[n + 1], versions[n + 2] = prefix .. list[i], ''
		n = n + 2
	end
	return versions
end

-- removed_versions are those of removed elements. A removal says nothing about the key's type.
local function removed_versions(policy, db, key, list, first, last, versions)
	if policy ~= 'l' then return versions end
	versions = versions or {}
	local n, prefix = #versions, element_field(db, key, '')
	for i = first, last do
		versions[n + 1], versions[n + 2] = prefix .. list[i], ' -'
		n = n + 2
	end
	return versions
end
