
-- Effects of keys with one writer (policy none) and of counters. No versions: what arrives is done.
local unversioned = {}

function unversioned.wholesale(e, v)
	select_db(e[3])
	local deletes = e[1] == 'D'
	local at = tonumber(e[6])
	if deletes or at and at <= c.clock then
		call('DEL', e[4])
		return deletes and 'applied' or 'dead'
	end
	put(e, v.zone, e[6])
	return 'applied'
end

-- add applies H, A or Z. The writer's key has the expiry pxat: when it has none and the key here has
-- one, the writer's had expired and is a new one.
function unversioned.add(e, _, letter)
	local key, pxat, kind = e[4], e[5], ELEMENTS[letter]
	select_db(e[3])
	local there, result = kind_of(key), 'applied'
	if there ~= 'none' then
		local other = there ~= kind.kind
		if other then result = 'diverged' end
		if other or pxat == '' and call('PEXPIRETIME', key) ~= -1 then call('DEL', key) end
	end
	sliced(kind.add, key, e, 6, #e)
	if pxat ~= '' then
		if tonumber(pxat) <= c.clock then
			call('DEL', key)
			return 'dead'
		end
		call('PEXPIREAT', key, pxat)
	end
	return result
end

function unversioned.remove(e, _, letter)
	local key, kind = e[4], ELEMENTS[letter]
	select_db(e[3])
	local there = kind_of(key)
	if there == 'none' then return 'applied' end
	if there ~= kind.kind then return 'diverged' end
	sliced(kind.remove, key, e, 6, #e)
	return 'applied'
end

function unversioned.expire(e)
	local db, key, pxat = e[3], e[4], e[5]
	select_db(db)
	local at = tonumber(pxat)
	if call('EXISTS', key) == 0 then
		if at and at <= c.clock then return 'dead' end
		-- It expired here before the writer's PERSIST.
		requests.want(db, key)
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

do -- what is local here is of this block alone

-- Zones may have made different types of one counter. A string wins over a hash, a hash over a sorted set: a change
-- of the winning type replaces the key, one of the losing type changes nothing. The winner never gives way, so all
-- zones end with the sum of all changes of the winning type.
local WINS_OVER = {I = {hash = true, zset = true}, i = {zset = true}, j = {}}

-- change changes a counter by what I, i or j says. Changes of all zones add up, in any order.
local function change(e, by)
	local op, db, key = e[1], e[3], e[4]
	local words = {'INCRBY', key, by}
	if op ~= 'I' then words = op == 'i' and {'HINCRBY', key, e[5], by} or {'ZINCRBY', key, by, e[5]} end
	select_db(db)
	if not failed(try(unpack(words))) then return 'applied' end
	local kind = kind_of(key)
	if not WINS_OVER[op][kind] then return 'diverged' end
	redis.log(redis.LOG_WARNING, 'sonic: the counter ' .. key .. ' of db ' .. db .. ' was a ' .. kind
		.. ' here, and another zone has made another type of it that wins')
	call('DEL', key)
	return failed(try(unpack(words))) and 'diverged' or 'applied'
end

-- count applies I, i or j. An own effect with `s` is the sum of changes that were dropped. A Redis that came back as it
-- was before that sum was shipped still has it noted, and the counter has it already.
function unversioned.count(e, v)
	local op, db, key = e[1], e[3], e[4]
	local single = op == 'I'
	if v.zone == c.zone and (single and e[6] or e[7]) == 's' then
		local hash = state(c.outbox, 'dropped')
		local field = op .. db .. ':' .. (single and key or DIGITS[#key] .. ':' .. key .. e[5])
		select_db('0')
		local sum = call('HGET', hash, field)
		if sum then call('HDEL', hash, field) end
		if sum and sum ~= '0' then change(e, string.sub(sum, 1, 1) == '-' and string.sub(sum, 2) or '-' .. sum) end
	end
	return change(e, single and e[5] or e[6])
end

end
