
-- What each effect does: function(effect, v), with effect = {op, policy, db, key, ..}. See docs/sonic-replication.md
-- for the table of effects. It returns 'applied', 'lost', 'dead' or 'diverged'.
local effects = {}

local function string_setter(key, value)
	return function(pxat)
		if pxat == '' then
			call('SET', key, value)
		else
			call('SET', key, value, 'PXAT', pxat)
		end
	end
end

-- dump_setter restores a dump of origin. A stream keeps the groups that it has here.
local function dump_setter(key, dump, origin)
	return function(pxat)
		local groups = origin ~= c.zone and groups_of(key)
		call('RESTORE', key, pxat == '' and '0' or pxat, dump, 'REPLACE', 'ABSTTL')
		if groups and kind_of(key) == 'stream' then set_groups(key, groups) end
	end
end

function effects.S(e, v)
	local set = string_setter(e[4], e[5])
	if e[2] == 'l' then return lww.wholesale(e[3], e[4], v, e[6], set) end
	return unversioned.wholesale(e[3], e[4], set, e[6])
end

function effects.R(e, v)
	local set = dump_setter(e[4], e[5], v.zone)
	if e[2] == 'l' then return lww.wholesale(e[3], e[4], v, e[6], set, true) end
	return unversioned.wholesale(e[3], e[4], set, e[6])
end

function effects.L(e, v)
	if e[2] == 'l' then return lww.operate(e, v) end
	return unversioned.operate(e)
end

function effects.D(e, v)
	if e[2] == 'l' then return lww.wholesale(e[3], e[4], v, '') end
	return unversioned.wholesale(e[3], e[4], nil, '')
end

local function adds(letter)
	return function(e, v)
		if e[2] == 'l' then return lww.add(e[3], e[4], v, letter, e[5], e, 6) end
		return unversioned.add(e[3], e[4], letter, e[5], e, 6)
	end
end

local function takes(letter)
	return function(e, v)
		if e[2] == 'l' then return lww.remove(e[3], e[4], v, e, 6) end
		return unversioned.remove(e[3], e[4], letter, e, 6)
	end
end

effects.H, effects.A, effects.Z = adds('h'), adds('s'), adds('z')
effects.h, effects.a, effects.z = takes('h'), takes('s'), takes('z')

function effects.E(e, v)
	if e[2] == 'l' then return lww.expire(e[3], e[4], v, e[5], tonumber(e[6])) end
	return unversioned.expire(e[3], e[4], e[5])
end

-- restored returns the negative of a sum that is noted, and forgets it; nil when there is none. It is for a Redis
-- that came back as it was before that sum was shipped, and gets it from the topic: the counter here has what is
-- noted already.
function unsent.restored(field)
	select_db('0')
	local hash = state(c.outbox, 'unsent')
	local sum = call('HGET', hash, field)
	if not sum then return nil end
	call('HDEL', hash, field)
	if sum == '0' then return nil end
	return string.sub(sum, 1, 1) == '-' and string.sub(sum, 2) or '-' .. sum
end

function effects.I(e, v)
	local noted = e[6] == 's' and v.zone == c.zone and unsent.restored('I' .. e[3] .. ':' .. e[4])
	if noted then unversioned.count(e[3], 'INCRBY', e[4], noted) end
	return unversioned.count(e[3], 'INCRBY', e[4], e[5])
end

do
	-- counts_elements returns what applies a change of an element of a counter, a hash or a sorted set.
	local function counts_elements(op, change)
		return function(e, v)
			local db, key, element = e[3], e[4], e[5]
			local noted = e[7] == 's' and v.zone == c.zone
				and unsent.restored(op .. db .. ':' .. DIGITS[#key] .. ':' .. key .. element)
			if noted then change(db, key, element, noted) end
			return change(db, key, element, e[6])
		end
	end

	effects.i = counts_elements('i', function(db, key, field, by)
		return unversioned.count(db, 'HINCRBY', key, field, by)
	end)
	effects.j = counts_elements('j', function(db, key, member, by)
		return unversioned.count(db, 'ZINCRBY', key, by, member)
	end)
end

function effects.P(e)
	call('PUBLISH', e[4], e[5])
	return 'applied'
end
