
-- Comparing zones: digests of what keys hold, in a form that does not depend on how Redis keeps it. Everything here
-- only reads.

-- c.work is what the call has read so far, in elements of keys: many bytes count as one. A call ends once it has read
-- enough, with one key at least, so that Redis has time for clients between calls.
local ENOUGH, BYTES = 10000, 200

-- pieces[kind](key, at, digest) reads the next piece of a key: at is '' at the beginning, and digest that of the pieces
-- before. It returns the next at, nil at the end, and the digest.
local pieces = {}

do -- what is local here is of this block alone: a function of Lua has at most 200 locals

local TWO_48 = 281474976710656

-- framed writes a value so that two of them, one behind the other, are not taken for two others.
local function framed(value) return #value .. ':' .. value end

-- sum_of adds up digests of elements, in any order: each Redis gives them in an order of its own. Sorting them
-- would go by the locale. Elements are list[1], list[1+step], .., each with the value behind it when
-- step is 2. a and b are the sums so far. It returns the digest, and both sums.
local function sum_of(list, step, a, b)
	local sha1hex, sub = redis.sha1hex, string.sub
	a, b = a or 0, b or 0
	for i = 1, #list, step do
		local digest = sha1hex(step == 1 and list[i] or framed(list[i]) .. list[i + 1])
		a = a + tonumber(sub(digest, 1, 12), 16)
		b = b + tonumber(sub(digest, 13, 24), 16)
		if a >= TWO_48 then a = a - TWO_48 end
		if b >= TWO_48 then b = b - TWO_48 end
	end
	c.work = c.work + #list / step
	return format('%012x%012x', a, b), a, b
end

-- scans returns what reads pieces by SSCAN, HSCAN or ZSCAN. Redis writes a score with more digits when it keeps the
-- sorted set as a skiplist.
local function scans(command, step)
	return function(key, at, digest)
		local a, b = tonumber(string.sub(digest, 1, 12), 16) or 0, tonumber(string.sub(digest, 13), 16) or 0
		if at == '' then at = '0' end
		repeat
			local found = call(command, key, at, 'COUNT', '1000')
			local list = found[2]
			at = found[1]
			for i = 2, command == 'ZSCAN' and #list or 0, 2 do list[i] = format('%.17g', tonumber(list[i])) end
			digest, a, b = sum_of(list, step, a, b)
		until at == '0' or c.work >= ENOUGH
		return at ~= '0' and at or nil, digest
	end
end

pieces.set, pieces.hash, pieces.zset = scans('SSCAN', 1), scans('HSCAN', 2), scans('ZSCAN', 2)

pieces.string = function(key, at, digest)
	local from = tonumber(at) or 0
	local value = call('GETRANGE', key, from, from + ENOUGH * BYTES - 1)
	if value == '' and at ~= '' then return nil, digest end
	c.work = c.work + #value / BYTES
	local at_next = #value == ENOUGH * BYTES and format('%d', from + #value) or nil
	-- A HyperLogLog keeps its last count in bytes 9 to 16. PFCOUNT changes them, and is no write.
	if at == '' and #value >= 16 and string.sub(value, 1, 4) == 'HYLL' and string.byte(value, 5) <= 1 then
		value = string.sub(value, 1, 8) .. string.sub(value, 17)
	end
	return at_next, redis.sha1hex(digest .. value)
end

pieces.list = function(key, at, digest)
	local from = tonumber(at) or 0
	local list = call('LRANGE', key, from, from + SLICE - 1)
	if #list == 0 then return nil, digest end
	c.work = c.work + #list
	for i = 1, #list do list[i] = framed(list[i]) end
	return #list == SLICE and format('%d', from + #list) or nil, redis.sha1hex(digest .. concat(list))
end

-- Consumer groups are of one zone and not compared.
pieces.stream = function(key, at, digest)
	local list = call('XRANGE', key, at == '' and '-' or '(' .. at, '+', 'COUNT', SLICE)
	if #list == 0 then return nil, redis.sha1hex(digest .. stream_fields(key)['last-generated-id']) end
	c.work = c.work + #list
	local parts = {digest}
	for i = 1, #list do
		parts[#parts + 1] = list[i][1]
		for j = 1, #list[i][2] do parts[#parts + 1] = framed(list[i][2][j]) end
	end
	return list[#list][1], redis.sha1hex(concat(parts, ' '))
end

end

-- Keys of more than ENOUGH elements, or as many bytes as that, are read in pieces, one a call. A key that changes in
-- between has some digest: who compares looks again.

-- sonic_digest_piece db key kind at digest: reads the next piece of a large key of that kind: where the next one is,
-- '' at the end, and the digest so far.
reads('sonic_digest_piece', nil, function(_, args)
	local db, key, kind, at, digest = unpack(args)
	call('SELECT', db)
	c.work = 0
	if kind_of(key) ~= kind then return {'', 'changed in zone ' .. c.zone .. ' at ' .. format('%d', wall_clock())} end
	at, digest = pieces[kind](key, at, digest)
	return {at or '', digest}
end)

-- reached returns how far this Redis is: zone, id, zone, id, .. Its own zone is the first.
local function reached(out)
	local last = last_of(out)
	local name = c.clustered and c.zone or call('HGET', state(out, 'meta'), 'zone') or ''
	local list, all = {name, last}, all_cursors(out)
	for i = 1, #all, 4 do
		list[#list + 1], list[#list + 2] = all[i], all[i + 1]
	end
	return list
end

-- sonic_digests db key..: how far this Redis is, and what the keys hold: the first ones, when there is too much to
-- read in one call. Of each key: its name, type ('none' without a key, or in a database that this Redis does not have),
-- digest, expiry ('' for never), policy. The digest of a large key is '': it is read by sonic_digest_piece.
reads('sonic_digests', nil, function(out, args)
	local at, list = reached(out), {}
	local no_db = failed(try('SELECT', args[1]))
	c.work = 0
	for i = 2, #args do
		local key = args[i]
		local kind, n = no_db and 'none' or kind_of(key), #list
		local digest, pxat, length = '', '', LENGTH[kind] and call(LENGTH[kind], key)
		c.work = c.work + 1
		if length and length <= (kind == 'string' and ENOUGH * BYTES or ENOUGH) then
			local from = ''
			repeat from, digest = pieces[kind](key, from, digest) until not from
		end
		if kind ~= 'none' then pxat = expiry_of(key) end
		list[n + 1], list[n + 2], list[n + 3], list[n + 4], list[n + 5] = key, kind, digest, pxat, policy_of(key)
		if c.work >= ENOUGH then break end
	end
	return {at, list}
end)

local function without_state(keys)
	local list = {}
	for _, key in ipairs(keys) do
		if string.sub(key, 1, 7) ~= '{sonic:' then list[#list + 1] = key end
	end
	return list
end

-- sonic_walk db cursor count: one step of SCAN: the next cursor, and the keys that it found.
reads('sonic_walk', nil, function(_, args)
	call('SELECT', args[1])
	local step = call('SCAN', args[2], 'COUNT', args[3])
	return {step[1], without_state(step[2])}
end)

-- sonic_slot: all keys of the slot. A cluster has no cursor within a slot.
reads('sonic_slot', 'clustered', function(out)
	local slot = call('CLUSTER', 'KEYSLOT', out)
	return without_state(call('CLUSTER', 'GETKEYSINSLOT', slot, call('CLUSTER', 'COUNTKEYSINSLOT', slot)))
end)

-- sonic_versions cursor count: one step through the hash of versions: the next cursor; field, version, ..
reads('sonic_versions', nil, function(out, args)
	return call('HSCAN', VERSION_HASH[out], args[1], 'COUNT', args[2])
end)
