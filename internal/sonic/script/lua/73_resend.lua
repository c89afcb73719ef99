
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- What effects changed that were dropped, see 12_dropped.lua.

-- sonic_drop 0|1 bound 0|1: from now on effects are dropped, or not; what the stream may hold in bytes, '' for no
-- bound, and whether effects are dropped past it. sonic_open has effects not be dropped.
always('sonic_drop', 'opened', function(_, args)
	c.dropping = args[1] == '1'
	backlog.limit(args[2], args[3] == '1')
	return 1
end)

-- sonic_unsent: whether effects are dropped; how many things are noted; how many effects were lost; how many entries
-- the stream has, their bytes, how old the first one is in ms; the bound of the bytes, -1 for none, and whether
-- effects are dropped past it. It closes a Redis that was emptied: sonic_beat does so only while a Sonic ships.
reads('sonic_unsent', nil, function(out)
	shards.close_emptied(out)
	local first = backlog.first_ms(out)
	local age = first and math.max(0, wall_clock() - first) or 0
	local bound = c.bound == 1 / 0 and '-1' or format('%.0f', c.bound)
	return {
		c.dropping and '1' or '0', format('%d', call('HLEN', state(out, 'dropped'))),
		call('HGET', state(out, 'meta'), 'lost') or '0',
		format('%d', call('XLEN', out)), format('%.0f', c.bytes), format('%.0f', age), bound,
		c.drops and '1' or '0',
	}
end)

-- element_now returns the effect that says what an element of key is, of the type letter. typed says that there is no
-- such key, and that other zones are to hear that it was of that type.
local function element_now(db, key, element, letter, typed, versions)
	local policy, value, pxat = policy_of(key), nil, expiry_of(key)
	if not pxat then
		pxat = ''
		-- Elsewhere it may be of another type than it was here last: without versions it would stay.
		if policy == 'n' then return deletion_effect(policy, db, key), versions end
	elseif LETTERS[kind_of(key)] ~= letter then
		if policy == 'n' then return '', versions end -- elsewhere it is of that type, too
	elseif letter == 'h' then
		value = call('HGET', key, element)
	elseif letter == 'z' then
		value = call('ZSCORE', key, element)
	else
		value = call('SISMEMBER', key, element) == 1 and ''
	end
	local function addition(value)
		if letter == 'h' then return element_effect('H', policy, db, key, pxat, element, value) end
		if letter == 'z' then return element_effect('Z', policy, db, key, pxat, value, element) end
		return element_effect('A', policy, db, key, pxat, element)
	end
	if value then return addition(value), added_versions(policy, db, key, letter, {element}, 1, 1, 1, versions) end
	local effects = element_effect(letter == 's' and 'a' or letter, policy, db, key, pxat, element)
	if typed then -- it is added, and removed again
		effects, versions = addition('0') .. effects, versions or {}
		versions[#versions + 1], versions[#versions + 2] = type_field(db, key, letter), ''
	end
	return effects, removed_versions(policy, db, key, {element}, 1, 1, versions)
end

-- overwritten tells whether another zone has written, since the effects were dropped, all that key holds here, or the
-- element if given. All zones get that, and a write of that zone that is on its way may be newer: the state here is
-- not news.
local function overwritten(db, key, element)
	if element then
		local stored = stored_versions(db, element_field(db, key, element))[1]
		-- A removal says nothing about the key's type.
		return stored and string.find(stored, '@', 1, true) and string.sub(stored, -2) ~= ' -'
	end
	local kind = kind_of(key)
	if not IN_PLACE[kind] then return false end
	local stored = stored_versions(db, key_field(db, key), expiry_field(db, key))
	local whole = stored[1]
	-- What is pruned may be older than the effects that were dropped: so may be an expiry that is forgotten.
	if not whole or not string.find(whole, '@', 1, true) or not version.known(whole) then return false end
	return not stored[2] or version.overtaken(stored[2], whole)
end

-- deleted tells whether the key was deleted or replaced since an element of it was written: all zones get that, and
-- know as much as this one, also of the types that the key had before. What follows it in another zone may be on its
-- way. An element whose version is forgotten is older than all that is known: also than the key, once it was shipped
-- as a whole for one of its elements.
local function deleted(db, key, element)
	local stored = stored_versions(db, element_field(db, key, element), key_field(db, key))
	if not stored[1] then return version.known(stored[2]) ~= nil end
	return version.overtaken(stored[1], stored[2])
end

-- effects_of_field returns the effects of one field of the hash `dropped`, and comes back to db 0. wholes are the keys
-- that the same entry ships as a whole.
local function effects_of_field(hash, field, value, versions, wholes)
	local kind, db, key = string.match(field, '^(.)(%d+):(.*)$')
	local element
	if kind ~= 'k' and kind ~= 'I' then
		local size, rest = string.match(key, '^(%d+):(.*)$')
		key, element = string.sub(rest, 1, tonumber(size)), string.sub(rest, tonumber(size) + 1)
	end
	if kind == 'I' then
		if value == '0' then return '', versions end
		return counter_effect('I', db, key, value, 's'), versions
	elseif kind == 'i' or kind == 'j' then
		if value == '0' then return '', versions end
		return counter_effect(kind, db, key, element, value, 's'), versions
	elseif kind == 'e' and call('HEXISTS', hash, 'k' .. db .. ':' .. key) == 1 then
		return '', versions -- the whole key is shipped
	end
	local effects
	call('SELECT', db)
	local letter, added, there = string.lower(value), string.find(value, '%u'), kind_of(key)
	local gone = element and deleted(db, key, element)
	if element and there ~= 'none' and LETTERS[there] ~= letter then -- what it was written to is gone
		if added then
			element = nil -- the key was of that type for a moment, and wiped what others may have
		else
			letter = LETTERS[there] or letter -- a removal is one of whatever type
		end
	end
	if gone or not element and wholes[db .. ':' .. key] or overwritten(db, key, element) then
		effects = ''
	elseif element then
		effects, versions = element_now(db, key, element, letter, added and there == 'none', versions)
	else
		effects, versions = state_effects(db, key, versions)
		wholes[db .. ':' .. key] = true
	end
	call('SELECT', '0')
	return effects, versions
end

-- What one entry of sonic_resend has at most, but for one key that is larger.
local RESENT = 131072

-- sonic_resend count: appends what about so many fields of the hash `dropped` say, and forgets them. It returns the
-- entry's id, '' when there is none, and how many fields are left. It does nothing while effects are dropped.
always('sonic_resend', 'ready', function(out, args)
	local hash = state(out, 'dropped')
	local left = call('HLEN', hash)
	if c.dropping or left == 0 then return {'', left} end
	local cursor, fields = '0', nil
	repeat
		local step = call('HSCAN', hash, cursor, 'COUNT', args[1])
		cursor, fields = step[1], step[2]
	until #fields > 0 or cursor == '0'
	local whole, taken, parts, versions, size = {}, {}, {}, nil, 0
	local seen, wholes = {}, {}
	local function take(i)
		if size > RESENT or seen[fields[i]] then return end
		seen[fields[i]] = true
		local effects
		effects, versions = effects_of_field(hash, fields[i], fields[i + 1], versions, wholes)
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
	if effects ~= '' and not c.alone then id = append(out, '0', nil, effects, versions, true) end
	return {id or '', call('HLEN', hash)}
end)

end
