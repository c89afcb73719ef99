
each({'DEL', 'UNLINK'}, function(command)
	write(command, function(c, args)
		local count, parts, versions = 0, {}, nil
		for i = 2, #args do
			local key = args[i]
			local reply = try(command, key)
			if failed(reply) then return reply end -- the first: what keeps one from being deleted keeps all
			if reply == 1 then
				local policy = policy_of(key)
				count = count + 1
				parts[count] = deletion_effect(policy, c.db, key)
				versions = wholesale_versions(policy, c.db, key, '', versions)
			end
		end
		if count == 0 then return 0 end
		return count, concat(parts), versions
	end, {last = 0, frees = true})
end)

each({'EXPIRE', 'PEXPIRE', 'EXPIREAT', 'PEXPIREAT', 'PERSIST'}, function(command)
	write(command, function(c, args, key, policy)
		local before, cleared
		if key and policy == 'l' and not c.alone then
			before, cleared = expiry_of(key), cleared_before(policy, c.db, key)
		end
		local reply = run(command, args)
		if reply ~= 1 then return reply end
		local pxat = expiry_of(key)
		if not pxat then -- a time in the past
			return reply, deletion_effect(policy, c.db, key), wholesale_versions(policy, c.db, key, '')
		end
		return reply, expiry_change(policy, c.db, key, before, pxat, cleared)
	end, {frees = true})
end)

each({'RENAME', 'RENAMENX'}, function(command)
	write(command, function(c, args)
		local from, to = args[2], args[3]
		local reply = run_copy(command, args)
		if failed(reply) or reply == 0 or from == to then return reply end
		local policy = policy_of(from)
		local made, versions = copied(c.db, from, c.db, to)
		return reply, made and made .. deletion_effect(policy, c.db, from),
			wholesale_versions(policy, c.db, from, '', versions)
	end, {last = 3, frees = true})
end)

-- COPY source destination [DB db] [REPLACE]
write('COPY', function(c, args)
	local to = args[3]
	if to and policy_of(to) == 'c' then return counter_refusal('COPY') end
	local reply = run_copy('COPY', args)
	if reply ~= 1 then return reply end
	local other = c.db
	for i = 4, #args do
		if string.upper(args[i]) == 'DB' then other = format('%d', tonumber(args[i + 1])) end
	end
	return reply, copied(c.db, args[2], other, to)
end, {counters = true})

write('MOVE', function(c, args, key, policy)
	local reply = run_copy('MOVE', args)
	if reply ~= 1 then return reply end
	local made, versions = copied(c.db, key, format('%d', tonumber(args[3])), key)
	return reply, made and made .. deletion_effect(policy, c.db, key), wholesale_versions(policy, c.db, key, '', versions)
end, {frees = true})

write('RESTORE', function(c, args, key)
	local before = call('EXISTS', key)
	local reply = run('RESTORE', args)
	if failed(reply) or before == 0 and call('EXISTS', key) == 0 then return reply end
	return reply, state_effects(c.db, key)
end)

-- SORT key [BY p] [LIMIT offset count] [GET p ..] [ASC|DESC] [ALPHA] [STORE destination]
write('SORT', function(_, args)
	return stored('SORT', args, store_key(args, 3, {BY = 1, GET = 1, LIMIT = 2}))
end, {counters = true})
