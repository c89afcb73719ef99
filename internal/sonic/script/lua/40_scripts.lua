
-- sonic_tx closes the transaction of mode, if it appended anything. Its reply is the entry's id.
always('sonic_tx', 'ready', function(out, args)
	local db, tx, published = mode_of(args[1]) -- db is the connection's
	local id = false
	if tx and c.open_tx == tx then id = append(out, db, tx, '') end
	c.open_tx = nil
	if published then return {id} end
	return id
end)

local function digest_of(key)
	local dump = call('DUMP', key)
	if not dump then return '' end
	return expiry_of(key) .. ' ' .. redis.sha1hex(dump)
end

-- publication packs P: subscribers of other zones get the message, too.
local function publication(db, channel, message)
	return '\149\161P\161n' .. HEAD[#db] .. db .. HEAD[#channel] .. channel .. HEAD[#message] .. message
end

-- in_dbs calls f in the database of a script and in database 0: a script that selects another one notes what it
-- publishes there.
local function in_dbs(db, f)
	call('SELECT', db)
	f()
	if db == '0' then return end
	call('SELECT', '0')
	f()
	call('SELECT', db)
end

-- sonic_mark and sonic_ship stand before and behind a user's script in one MULTI, with the keys that it declares.
-- sonic_ship notes the state of those that are not what they were. With flag m of its mode sonic_mark makes the list
-- in which the script notes channels and messages of PUBLISH, behind an element of its own: see package publishing.
-- In a cluster sonic_mark is called with a second key, which does not exist: while the slot moves Redis refuses the
-- MULTI then. Else the script would run between two calls that are refused.
always('sonic_mark', 'ready', function(out, args)
	c.digests = {}
	if c.alone then return 0 end
	local db = mode_of(args[1])
	if string.find(args[1], 'm', 1, true) then
		in_dbs(db, function() call('RPUSH', state(out, 'published'), '') end)
	end
	call('SELECT', db)
	for i = 2, #args do c.digests[args[i]] = digest_of(args[i]) end
	return #args - 1
end)

always('sonic_ship', 'ready', function(out, args)
	if c.alone then return false end
	local before = c.digests or {}
	c.digests = nil
	local db, tx = mode_of(args[1])
	call('SELECT', db)
	local parts, versions = {}, nil
	for i = 2, #args do
		local key = args[i]
		if before[key] ~= digest_of(key) then
			parts[#parts + 1], versions = state_effects(db, key, versions)
		end
	end
	in_dbs(db, function()
		local list = call('LRANGE', state(out, 'published'), '0', '-1')
		if #list == 0 then return end
		call('DEL', state(out, 'published'))
		for i = 2, #list, 2 do parts[#parts + 1] = publication(db, list[i], list[i + 1]) end
	end)
	local effects = concat(parts)
	return effects ~= '' and append(out, db, tx, effects, versions)
end)

write('PUBLISH', function(c, args)
	local reply = run('PUBLISH', args)
	if failed(reply) then return reply end
	return reply, publication(c.db, args[2], args[3])
end, {counters = true, frees = true})
