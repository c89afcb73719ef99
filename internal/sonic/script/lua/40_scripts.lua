
-- always registers a function that runs when Redis has reached its bound of memory, too: what stands
-- beside it in a MULTI has run then.
local function always(name, callback)
	redis.register_function{function_name = name, callback = callback, flags = {'allow-oom'}}
end

-- sonic_tx closes the transaction of mode, if it appended anything. Its reply is the entry's id.
always('sonic_tx', function(keys, args)
	if not ready then return NOT_READY end
	local db, tx, published = mode_of(args[1]) -- db is the connection's
	local id = false
	if tx and open_tx == tx then id = append(keys[1], db, tx, '') end
	open_tx = nil
	if published then return {id} end
	return id
end)

-- State of the keys of a user's script before it ran: digests by key.
local marks

local function mark_of(key)
	local dump = call('DUMP', key)
	if not dump then return '' end
	return expiry_of(key) .. ' ' .. redis.sha1hex(dump)
end

-- sonic_mark and sonic_ship stand before and behind a user's script in one MULTI, with the keys that
-- it declares. sonic_ship notes the state of those that are not what they were.
always('sonic_mark', function(_, args)
	if not ready then return NOT_READY end
	marks = {}
	if alone then return 0 end
	local db = mode_of(args[1])
	call('SELECT', db)
	for i = 2, #args do marks[args[i]] = mark_of(args[i]) end
	return #args - 1
end)

always('sonic_ship', function(keys, args)
	if not ready then return NOT_READY end
	if alone then return false end
	outbox = keys[1]
	local before = marks or {}
	marks = nil
	local db, tx = mode_of(args[1])
	call('SELECT', db)
	local parts, notes = {}, nil
	for i = 2, #args do
		local key = args[i]
		if before[key] ~= mark_of(key) then
			parts[#parts + 1], notes = state_effects(db, key, notes)
		end
	end
	local effects = table.concat(parts)
	if effects == '' then return false end
	return append(keys[1], db, tx, effects, notes)
end)

-- PUBLISH channel message: subscribers of other zones get it, too.
write('PUBLISH', function(args, db)
	local reply = run('PUBLISH', args)
	if failed(reply) then return reply end
	return reply, '\149\161P\161n' .. HEAD[#db] .. db .. HEAD[#args[2]] .. args[2] .. HEAD[#args[3]] .. args[3]
end, {frees = true})
