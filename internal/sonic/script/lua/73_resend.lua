
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- What effects changed that were dropped, see 12_unsent.lua.

-- sonic_skip 0|1: from now on effects are dropped, or not. sonic_open has them not be dropped.
always('sonic_skip', function(_, args)
	if not opened then return NOT_READY end
	unsent.choose(unsent.sends, args[1] == '1')
	return 1
end)

-- sonic_unsent: whether effects are dropped; how many things are noted; how many effects were published, how many of these the topic has; how
-- many were lost.
redis.register_function{
	function_name = 'sonic_unsent', flags = {'no-writes'},
	callback = function(keys)
		if not concat then bind() end
		return {
			unsent.skips and '1' or '0', format('%d', call('HLEN', state(keys[1], 'unsent'))), format('%d', unsent.sent),
			format('%d', unsent.told), call('HGET', state(keys[1], 'meta'), 'lost') or '0',
		}
	end,
}

-- sonic_lost n: as many effects are lost.
always('sonic_lost', function(keys, args)
	if not concat then bind() end
	unsent.lose(keys[1], tonumber(args[1]))
	return 1
end)

-- element_now returns the effect that says what an element of key is.
local function element_now(db, key, element, letter, notes)
	local policy, held, pxat = policy_of(key), nil, expiry_of(key) or ''
	if LETTERS[kind_of(key)] == letter then
		if letter == 'h' then
			held = call('HGET', key, element)
		elseif letter == 'z' then
			held = call('ZSCORE', key, element)
		else
			held = call('SISMEMBER', key, element) == 1
		end
	end
	if not held then
		-- Elsewhere it may be of another type than it was here last: without versions it would stay.
		if policy == 'n' and call('EXISTS', key) == 0 then return deletion_effect(policy, db, key), notes end
		local op = letter == 's' and 'a' or letter
		return element_effect(op, policy, db, key, pxat, element), removed_notes(policy, db, key, {element}, 1, 1, notes)
	end
	notes = added_notes(policy, db, key, letter, {element}, 1, 1, 1, notes)
	if letter == 'h' then return element_effect('H', policy, db, key, pxat, element, held), notes end
	if letter == 'z' then return element_effect('Z', policy, db, key, pxat, held, element), notes end
	return element_effect('A', policy, db, key, pxat, element), notes
end

-- overwritten tells whether another zone has written, since the effects were dropped, all that key holds here, or the element if given. All zones
-- get that, and a write of that zone that is on its way may be newer: the state here is not news. The script is in the key's db.
local function overwritten(ver, db, key, element)
	local kind = element or kind_of(key)
	if not element and kind ~= 'string' and kind ~= 'list' and kind ~= 'stream' then return false end
	call('SELECT', '0')
	local stored
	if element then
		stored = call('HMGET', ver, element_field(db, key, element))
	else
		stored = call('HMGET', ver, key_field(db, key), expiry_field(db, key))
	end
	call('SELECT', db)
	local version = stored[1]
	if not version or not string.find(version, '@', 1, true) then return false end
	if element then return string.sub(version, -2) ~= ' -' end -- a removal says nothing about the key's type
	return not stored[2] or versions.overtaken(stored[2], version)
end

-- resent returns the effects of one field of the hash `unsent`, and comes back to db 0.
local function resent(hash, ver, field, value, notes)
	local kind, db, key = string.match(field, '^(.)(%d+):(.*)$')
	local element
	if kind ~= 'k' and kind ~= 'I' then
		local size, rest = string.match(key, '^(%d+):(.*)$')
		key, element = string.sub(rest, 1, tonumber(size)), string.sub(rest, tonumber(size) + 1)
	end
	if kind == 'I' then
		if value == '0' then return '', notes end
		return counter_effect('I', db, key, value, 's'), notes
	elseif kind == 'i' or kind == 'j' then
		if value == '0' then return '', notes end
		return counter_effect(kind, db, key, element, value, 's'), notes
	elseif kind == 'e' and call('HEXISTS', hash, 'k' .. db .. ':' .. key) == 1 then
		return '', notes -- the whole key is shipped
	end
	local effects
	call('SELECT', db)
	if overwritten(ver, db, key, element) then
		effects = ''
	elseif kind == 'k' then
		effects, notes = state_effects(db, key, notes)
	else
		effects, notes = element_now(db, key, element, value, notes)
	end
	call('SELECT', '0')
	return effects, notes
end

-- What one entry of sonic_resend has at most, but for one key that is larger.
local RESENT = 131072

-- sonic_resend count: appends what about so many fields of the hash `unsent` say, and forgets them. It returns the entry's id, '' when
-- there is none, and how many fields are left. It does nothing while effects are dropped.
always('sonic_resend', function(keys, args)
	if not ready then return NOT_READY end
	local out = keys[1]
	local hash = state(out, 'unsent')
	local left = call('HLEN', hash)
	if unsent.skips or left == 0 then return {'', left} end
	local cursor, fields = '0', nil
	repeat
		local step = call('HSCAN', hash, cursor, 'COUNT', args[1])
		cursor, fields = step[1], step[2]
	until #fields > 0 or cursor == '0'
	local whole, taken, parts, notes, size = {}, {}, {}, nil, 0
	local seen = {}
	local function take(i)
		if size > RESENT or seen[fields[i]] then return end
		seen[fields[i]] = true
		local effects
		effects, notes = resent(hash, state(out, 'ver'), fields[i], fields[i + 1], notes)
		parts[#parts + 1], taken[#taken + 1] = effects, fields[i]
		size = size + #effects
	end
	-- Elements go while the mark of their key, if any, still says that the key is shipped as a whole.
	for i = 1, #fields, 2 do
		if string.sub(fields[i], 1, 1) == 'k' then
			whole[#whole + 1] = i
		else
			take(i)
		end
	end
	for i = 1, #whole do take(whole[i]) end
	sliced('HDEL', hash, taken, 1, #taken)
	local effects, id = concat(parts), false
	if effects ~= '' and not alone then id = append(out, '0', nil, effects, notes) end
	return {id or '', call('HLEN', hash)}
end)

end
