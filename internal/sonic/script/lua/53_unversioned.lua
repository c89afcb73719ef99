
-- Effects of keys with one writer (policy none) and of counters. No versions: what arrives is done.
local unversioned = {}

function unversioned.wholesale(db, key, set, pxat)
	select_db(db)
	local at = tonumber(pxat)
	if not set or at and at <= c.clock then
		call('DEL', key)
		return set and 'dead' or 'applied'
	end
	set(pxat)
	return 'applied'
end

-- add applies H, A or Z. The writer's key has the expiry pxat: when it has none and the key here has
-- one, the writer's had expired and is a new one.
function unversioned.add(db, key, letter, pxat, list, first)
	select_db(db)
	local kind = ELEMENTS[letter]
	local there, result = kind_of(key), 'applied'
	if there ~= 'none' then
		local other = there ~= kind.kind
		if other then result = 'diverged' end
		if other or pxat == '' and call('PEXPIRETIME', key) ~= -1 then call('DEL', key) end
	end
	sliced(kind.add, key, list, first, #list)
	if pxat ~= '' then
		if tonumber(pxat) <= c.clock then
			call('DEL', key)
			return 'dead'
		end
		call('PEXPIREAT', key, pxat)
	end
	return result
end

function unversioned.remove(db, key, letter, list, first)
	select_db(db)
	local kind = ELEMENTS[letter]
	local there = kind_of(key)
	if there == 'none' then return 'applied' end
	if there ~= kind.kind then return 'diverged' end
	sliced(kind.remove, key, list, first, #list)
	return 'applied'
end

function unversioned.expire(db, key, pxat)
	select_db(db)
	local at = tonumber(pxat)
	if call('EXISTS', key) == 0 then
		if at and at <= c.clock then return 'dead' end
		-- It expired here before the writer's PERSIST.
		c.request(db, key)
		return 'applied'
	end
	if at and at <= c.clock then
		call('DEL', key)
		return 'dead'
	end
	set_expiry(key, pxat)
	return 'applied'
end

-- has tells whether the copy that this Redis was filled with has the effect v on a key, see 72_bootstrap.lua.
function unversioned.has(v, db, key)
	select_db('0')
	local at = call('HGET', c.filled, db .. ':' .. key)
	if not at then return false end
	for origin, ms, seq in string.gmatch(at, '(%S+) (%d+)%-(%d+)') do
		if origin == v.zone then
			ms, seq = tonumber(ms), tonumber(seq)
			return v.ms < ms or v.ms == ms and v.seq <= seq
		end
	end
	return false
end

-- Zones may have made different types of one counter. A string wins over a hash, a hash over a sorted set: a change
-- of the winning type replaces the key, one of the losing type changes nothing. The winner never gives way, so all
-- zones end with the sum of all changes of the winning type.
local WINS_OVER = {INCRBY = {hash = true, zset = true}, HINCRBY = {zset = true}, ZINCRBY = {}}

-- count applies a change of a counter: I, i or j. Changes of all zones add up, in any order.
function unversioned.count(db, command, key, ...)
	select_db(db)
	if not failed(try(command, key, ...)) then return 'applied' end
	local kind = kind_of(key)
	if not WINS_OVER[command][kind] then return 'diverged' end
	redis.log(redis.LOG_WARNING, 'sonic: the counter ' .. key .. ' of db ' .. db .. ' was a ' .. kind
		.. ' here, and another zone has made another type of it that wins')
	call('DEL', key)
	return failed(try(command, key, ...)) and 'diverged' or 'applied'
end
