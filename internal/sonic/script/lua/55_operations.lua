
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- Operations on strings, lists and streams (L).

-- Those that are executed. What comes from another zone is not trusted to name others.
local OPERATIONS = {
	LPUSH = true, RPUSH = true, LPOP = true, RPOP = true, LREM = true, LSET = true, LINSERT = true, LTRIM = true,
	LMOVE = true, XADD = true, XDEL = true, XTRIM = true, XSETID = true,
	APPEND = true, SETRANGE = true, SETBIT = true, BITFIELD = true, PFADD = true, COPY = true,
}

-- The commands whose arguments are cut into slices.
local IN_SLICES = {LPUSH = true, RPUSH = true, PFADD = true}

-- copy executes the operation COPY: the arguments are the key to copy and its database. A stream keeps the groups
-- that it has here.
local function copy(e)
	local key, from = e[4], e[9]
	local groups = groups_of(key)
	select_db(e[10])
	local kind = kind_of(from)
	if not IN_PLACE[kind] then return false end
	call('COPY', from, key, 'DB', e[3], 'REPLACE')
	select_db(e[3])
	if kind == 'stream' then set_groups(key, groups) end
	return call(LENGTH[kind], key) == tonumber(e[7])
end

-- operate executes the operation of e. It tells whether it did here what it did at the origin, as far as the number
-- of values or bytes shows: somebody may have changed the key past Sonic.
local function operate(e)
	local key, command = e[4], e[8]
	if not OPERATIONS[command] then error('the operation ' .. tostring(command)) end
	select_db(e[3])
	if command == 'COPY' then return copy(e) end
	local kind = kind_of(key)
	if not IN_PLACE[kind] then return false end
	local reply
	if command == 'LMOVE' then
		reply = try(command, key, key, e[9], e[10])
	elseif #e > SLICE and IN_SLICES[command] then
		for i = 9, #e, SLICE do
			reply = try(command, key, unpack(e, i, math.min(i + SLICE - 1, #e)))
			if failed(reply) then break end
		end
	else
		reply = try(command, key, unpack(e, 9)) -- MOST_ARGS bounds them
	end
	return not failed(reply) and call(LENGTH[kind], key) == tonumber(e[7])
end

-- operate applies L at v. What it does when the operation cannot be executed here is said in 50_versions.lua.
function lww.operate(e, v)
	local db, key, pxat = e[3], e[4], e[6]
	local f = facts_to_change(db, key)
	if f.whole and before(v, f.whole) then return 'lost' end
	local base = version.base(f.stored)
	if base == version.full(v) then return 'applied' end -- it came with the copy of a bootstrap
	local said, at = version.expiry(f)
	local was = f.whole
	f.whole, f.whole_said = v, pxat
	local typed = version.newest_type(f)
	local lost = typed and before(v, typed)
	if lost or dead(f, v) then
		local replaced = lost and said and before(said, v) and at and has_passed(db, key, at)
		store(key_field(db, key), whole_text(v, pxat))
		settle(db, key, f, was)
		if replaced then requests.want(db, key, false, f) end
		return lost and 'lost' or 'dead'
	end
	local result = 'applied'
	if e[8] == 'COPY' then
		select_db('0')
		base = version.base(call('HGET', c.ver, key_field(e[10], e[9])))
	end
	if base == e[5] then
		if operate(e) then
			local _, _, text = version.expiry(f)
			set_expiry(key, text)
			store(key_field(db, key), whole_text(v, pxat, true))
			return 'applied'
		end
		if call('EXISTS', key) == 1 then result = 'diverged' end -- else it expired here
	end
	store(key_field(db, key), whole_text(v, pxat))
	settle(db, key, f, was)
	requests.want(db, key, true, f)
	return result
end

-- operate applies L without versions: what the one writer did, this zone does in the same order.
function unversioned.operate(e)
	local db, key, pxat = e[3], e[4], e[6]
	select_db(db)
	local at = tonumber(pxat)
	if at and at <= c.clock then
		call('DEL', key)
		return 'dead'
	end
	if operate(e) then
		set_expiry(key, pxat)
		return 'applied'
	end
	local there = call('EXISTS', key) == 1
	requests.want(db, key)
	return there and 'diverged' or 'applied' -- it expired here before the writer's PERSIST
end

end
