
-- A list is shipped as it is after the write: who applies one cannot tell its elements apart.

each({'LPUSH', 'RPUSH', 'LPUSHX', 'RPUSHX'}, function(command)
	write(command, function(args, db)
		local key, n = args[2], #args
		if policy_of(key) == 'c' then return counter_refusal(command) end
		local reply
		if n <= SLICE then
			reply = try(command, unpack(args, 2))
		else
			for start = 3, n, SLICE do
				reply = try(command, key, unpack(args, start, math.min(start + SLICE - 1, n)))
				if failed(reply) or reply == 0 then break end
			end
		end
		if failed(reply) or reply == 0 then return reply end
		return reply, dump_state(db, key)
	end)
end)

-- Commands that changed something unless the reply is nil, 0, -1 or an error. LREM and the pops free memory.
each({{'LPOP', true}, {'RPOP', true}, {'LREM', true}, {'LSET', false}, {'LINSERT', false}}, function(command, frees)
	write(command, function(args, db)
		local key = args[2]
		if policy_of(key) == 'c' then return counter_refusal(command) end
		local reply = run(command, args)
		if not reply or reply == 0 or reply == -1 or failed(reply) then return reply end
		if type(reply) == 'table' and not reply.ok and #reply == 0 then return reply end -- LPOP key 0
		return reply, dump_state(db, key)
	end, {frees = frees})
end)

write('LTRIM', function(args, db)
	local key = args[2]
	if policy_of(key) == 'c' then return counter_refusal('LTRIM') end
	local before = try('LLEN', key)
	local reply = run('LTRIM', args)
	if failed(reply) or before == call('LLEN', key) then return reply end
	return reply, dump_state(db, key)
end, {frees = true})

-- move_element runs command, LMOVE or RPOPLPUSH, for the client's command name.
local function move_element(name, command, args, db)
	local from, to = args[2], args[3]
	if policy_of(from) == 'c' or to and policy_of(to) == 'c' then return counter_refusal(name) end
	local reply = run(command, args)
	if not reply or failed(reply) then return reply end
	local effects, notes = dump_state(db, from)
	if from ~= to then effects, notes = dump_state(db, to, effects, notes) end
	return reply, effects, notes
end

each({'LMOVE', 'RPOPLPUSH'}, function(command)
	write(command, function(args, db) return move_element(command, command, args, db) end)
end)

-- LMPOP numkeys key .. LEFT|RIGHT [COUNT n]; BLMPOP has a timeout before that, and does not wait in a function.
each({{'LMPOP', 2}, {'BLMPOP', 3}}, function(command, at)
	write(command, function(args, db)
		for i = at + 1, last_of_keys(args, at) do
			if policy_of(args[i]) == 'c' then return counter_refusal(command) end
		end
		local reply = run(command, args)
		if not reply or failed(reply) then return reply end
		return reply, dump_state(db, reply[1])
	end, {frees = true})
end)
