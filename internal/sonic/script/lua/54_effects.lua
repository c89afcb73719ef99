
-- What each effect does: function(effect, v), with effect = {op, policy, db, key, ..}. See docs/sonic.md for
-- the table of effects. It returns 'applied', 'lost', 'dead' or 'diverged'.
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

local function dump_setter(key, dump)
	return function(pxat) call('RESTORE', key, pxat == '' and '0' or pxat, dump, 'REPLACE', 'ABSTTL') end
end

function effects.S(e, v)
	local set = string_setter(e[4], e[5])
	if e[2] == 'l' then return fold.wholesale(e[3], e[4], v, e[6], set) end
	return blind.wholesale(e[3], e[4], set, e[6])
end

function effects.R(e, v)
	local set = dump_setter(e[4], e[5])
	if e[2] == 'l' then return fold.wholesale(e[3], e[4], v, e[6], set) end
	return blind.wholesale(e[3], e[4], set, e[6])
end

function effects.D(e, v)
	if e[2] == 'l' then return fold.wholesale(e[3], e[4], v, '') end
	return blind.wholesale(e[3], e[4], nil, '')
end

local function adds(letter)
	return function(e, v)
		if e[2] == 'l' then return fold.add(e[3], e[4], v, letter, e[5], e, 6) end
		return blind.add(e[3], e[4], letter, e[5], e, 6)
	end
end

local function takes(letter)
	return function(e, v)
		if e[2] == 'l' then return fold.remove(e[3], e[4], v, e, 6) end
		return blind.remove(e[3], e[4], letter, e, 6)
	end
end

effects.H, effects.A, effects.Z = adds('h'), adds('s'), adds('z')
effects.h, effects.a, effects.z = takes('h'), takes('s'), takes('z')

function effects.E(e, v)
	if e[2] == 'l' then return fold.expire(e[3], e[4], v, e[5], tonumber(e[6])) end
	return blind.expire(e[3], e[4], e[5])
end

function effects.I(e) return blind.count(e[3], 'INCRBY', e[4], e[5]) end
function effects.i(e) return blind.count(e[3], 'HINCRBY', e[4], e[5], e[6]) end
function effects.j(e) return blind.count(e[3], 'ZINCRBY', e[4], e[6], e[5]) end

function effects.P(e)
	call('PUBLISH', e[4], e[5])
	return 'applied'
end
