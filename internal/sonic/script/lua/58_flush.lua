
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- Flushing databases: FLUSHDB and FLUSHALL of this zone only, or of all zones as the effect F, see 50_versions.lua.

-- Names of state keys. Those of `part:<origin>` come from `cur`.
local STATE = {
	'out', 'ver', 'meta', 'cur', 'reported', 'requests', 'answers', 'dropped', 'boot', 'slots', 'mark', 'recovery',
}

-- state_keys returns the names of all state keys. The script is in db 0.
local function state_keys()
	local list = {}
	for i = 1, #STATE do list[i] = state(c.outbox, STATE[i]) end
	local origins = call('HKEYS', state(c.outbox, 'cur'))
	for i = 1, #origins do
		local origin = string.match(origins[i], '^p (.*)$')
		if origin then list[#list + 1] = state(c.outbox, 'part:' .. origin) end
	end
	return list
end

-- empty deletes all keys of a database but state keys and those of kept, a list. The other arguments are those of
-- FLUSHDB. Keys that stay are moved to another database during FLUSHDB: deleting the others one by one takes about 2
-- s per million.
local function empty(db, kept, ...)
	select_db(db)
	if call('DBSIZE') == 0 then return end
	local stay = {}
	for _, list in ipairs({kept, db == '0' and state_keys() or nil}) do
		for i = 1, #list do
			if call('EXISTS', list[i]) == 1 then stay[#stay + 1] = list[i] end
		end
	end
	local other = db == '0' and '1' or '0'
	-- Its error about the argument tells that Redis has FLUSHDB: some rename it, so that nobody calls it by mistake.
	local has_flush = string.find(try('FLUSHDB', '?').err, 'syntax error', 1, true)
	if not has_flush or try_db(other) then -- or db is the only database
		local keep, cursor = {}, '0'
		for i = 1, #stay do keep[stay[i]] = true end
		repeat
			local step, gone = call('SCAN', cursor, 'COUNT', '1000'), {}
			cursor = step[1]
			for i = 1, #step[2] do
				if not keep[step[2][i]] then gone[#gone + 1] = step[2][i] end
			end
			if #gone > 0 then call('UNLINK', unpack(gone)) end
		until cursor == '0'
		return
	end
	-- The other database may have a key of the same name.
	local function aside(i) return state(c.outbox, 'kept:') .. i end
	for i = 1, #stay do call('UNLINK', aside(i)) end
	select_db(db)
	for i = 1, #stay do
		call('RENAME', stay[i], aside(i))
		call('MOVE', aside(i), other)
	end
	call('FLUSHDB', ...)
	select_db(other)
	for i = 1, #stay do call('MOVE', aside(i), db) end
	select_db(db)
	for i = 1, #stay do call('RENAME', aside(i), stay[i]) end
end

-- How many keys empty_slot deletes at once.
local AT_ONCE = 1000

-- empty_slot deletes all keys of the slot but its state keys and those of kept, a set.
local function empty_slot(kept)
	local slot, prefix, stay = call('CLUSTER', 'KEYSLOT', c.outbox), state(c.outbox, ''), 0
	repeat
		local most = 2 * stay + AT_ONCE -- those that stay come again
		local list, gone = call('CLUSTER', 'GETKEYSINSLOT', slot, most), {}
		for i = 1, #list do
			local key = list[i]
			if not kept[key] and string.sub(key, 1, #prefix) ~= prefix then gone[#gone + 1] = key end
		end
		stay = #list - #gone
		for i = 1, #gone, SLICE do call('UNLINK', unpack(gone, i, math.min(i + SLICE - 1, #gone))) end
	until #list < most
end

-- cannot_flush returns the error for a user of Redis who may not list the keys of a slot, nil for others.
function shards.cannot_flush()
	local problem = try('CLUSTER', 'KEYSLOT', c.outbox)
	if not failed(problem) then problem = try('CLUSTER', 'GETKEYSINSLOT', problem, '0') end
	if not failed(problem) then return nil end
	return {err = 'NOPERM a flush needs CLUSTER KEYSLOT and CLUSTER GETKEYSINSLOT, which Redis refuses: ' .. problem.err}
end

-- newer_keys returns the keys of the databases left of which something newer than v is known: db, key, ..
local function newer_keys(v, left)
	local list = {}
	local at = c.reached_before
	if at.raised == c.last_id and (at.ms < v.ms or at.ms == v.ms and at.seq < v.seq) then return list end
	local seen, cursor = {}, '0'
	repeat
		local step = call('HSCAN', c.ver, cursor, 'COUNT', '1000')
		cursor = step[1]
		local fields = step[2]
		for i = 1, #fields, 2 do
			local db, key = version.named(fields[i])
			if db and left[db] and before(v, version.parse(fields[i + 1])) and not seen[db .. ':' .. key] then
				seen[db .. ':' .. key] = true
				list[#list + 1], list[#list + 2] = db, key
			end
		end
	until cursor == '0'
	return list
end

-- F: the database, an empty key, further databases. In a cluster it is of the slot, and of database 0 alone.
function effects.F(e, v)
	local dbs, left, any = {e[3], unpack(e, 5)}, {}, false
	select_db('0')
	for i = 1, #dbs do
		local db = dbs[i]
		local flushed = version.flushed(c.ver, db)
		-- Else it is lost, or came with the copy of a bootstrap.
		if not flushed or before(flushed, v) then left[db], any = {}, true end
	end
	if not any then return 'lost' end
	local newer = newer_keys(v, left)
	for i = 1, #newer, 2 do
		local db, key = newer[i], newer[i + 1]
		lww.wholesale({'D', 'l', db, key}, v)
		left[db][key] = true
	end
	select_db('0')
	if c.filled then -- the copy may have keys without versions that were written behind the flush
		local keys = call('HKEYS', c.filled)
		for i = 1, #keys do
			local db, key = string.match(keys[i], '^(%d+):(.*)$')
			if db and left[db] and unversioned.has(v, db, key) then left[db][key] = true end
		end
	end
	dropped.forget(c.outbox, left)
	for db, keys in pairs(left) do
		store(flush_field(db), v.text)
		c.flushes[db] = v
		local kept = {}
		for key in pairs(keys) do kept[#kept + 1] = key end
		if c.clustered then
			empty_slot(keys)
		elseif not try_db(db) then
			empty(db, kept, 'ASYNC')
		end
	end
	return 'applied'
end

-- databases returns all databases that this Redis has.
local function databases()
	local list = {}
	while not failed(try('SELECT', DIGITS[#list])) do list[#list + 1] = DIGITS[#list] end
	return list
end

-- flushes registers command as a function. all says that it is of all databases, here that it is of this zone only.
local function flushes(name, command, all, here)
	always(name, 'ready', function(out, args)
		-- A zone with one Redis would have to read all its keys to find those of a slot, once for each slot.
		if c.clustered then
			return {err = 'SONICREFUSED ' .. command .. ' is not supported with a Redis Cluster and other zones: '
				.. 'delete its keys one by one'}
		end
		local db, tx, published = mode_of(args[1])
		local how = args[2] and string.upper(args[2])
		if #args > 2 or how and how ~= 'SYNC' and how ~= 'ASYNC' then return {err = 'ERR syntax error'} end
		local counters = c.default_policy == 'c'
		for i = 1, #c.policies do counters = counters or c.policies[i][2] == 'c' end
		if counters then
			return {err = 'SONICREFUSED ' .. command .. ' is refused with policy counter in conflicts: '
				.. 'counters cannot be deleted'}
		end
		if c.bytes > c.bound and not here and not c.alone then return FULL end
		local dbs, flushed = all and databases() or {db}, {}
		for i = 1, #dbs do flushed[dbs[i]] = {} end
		call('SELECT', '0')
		local id = false
		if not here and not c.alone then
			local versions = {}
			for i = 1, #dbs do versions[2 * i - 1], versions[2 * i] = flush_field(dbs[i]), '' end
			-- It is kept although others are dropped: nothing that is shipped later could stand for it. Then nothing
			-- in the stream may end its transaction.
			local effect = cmsgpack.pack({'F', 'l', dbs[1], '', unpack(dbs, 2)})
			id = append(out, '0', not c.dropping and tx or nil, effect, versions, true)
			for i = 1, #dbs do c.flushes[dbs[i]] = version.of(id, c.zone) end
		end
		local forgotten = dropped.forget(out, flushed)
		if here then dropped.lose(out, forgotten) end
		for i = 1, #dbs do empty(dbs[i], {}, unpack(args, 2)) end
		local reply = {ok = 'OK'}
		if published then return {id, reply} end
		return reply
	end)
end

flushes('sonic_flushdb', 'FLUSHDB', false, false)
flushes('sonic_flushall', 'FLUSHALL', true, false)
flushes('sonic_flushdb_zone', 'FLUSHDB', false, true)
flushes('sonic_flushall_zone', 'FLUSHALL', true, true)

end
